"""The losses: arrays in, arrays out.

Every function here is pure and knows neither models nor devices: `jaxretr/training/steps/` embeds, gathers and shards,
and calls these. Letters of shapes: B questions of the batch, b of this device, C or K passages of a question, M passages
in all, V misspelt forms, D dimensions, L tokens.
"""

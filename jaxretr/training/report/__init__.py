"""`jaxretr report`: a page about training runs, made of the runs' files and of searches with their models."""

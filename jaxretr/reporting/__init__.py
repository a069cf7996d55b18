"""`jaxretr report`: one page about training runs, made of files that the runs left and of searches with their models."""

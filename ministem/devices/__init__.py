"""Where arrays and tables live besides RAM: on disk, on a GPU, in the host's memory beside a GPU."""

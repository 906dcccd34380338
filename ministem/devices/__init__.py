"""Where arrays and tables live besides RAM: on a disk, in the host's memory beside a GPU, on a GPU."""

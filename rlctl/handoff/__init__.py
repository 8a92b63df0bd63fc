"""BE that starves here, handed to whoever can run it elsewhere: on Kubernetes a label, and an eviction in a budget."""

"""Results of runs -> MLflow, which no run needs: what cannot be sent waits in the spool for a later run."""

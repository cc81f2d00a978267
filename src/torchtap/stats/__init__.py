"""What is measured: the definition, merge and finish of each statistic."""

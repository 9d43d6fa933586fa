"""What PromQL cannot say, computed by functions of series and written as families."""

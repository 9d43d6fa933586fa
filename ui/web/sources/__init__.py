"""Where answers come from: a running agent, a recording, a Prometheus. All are asked alike (`base.Source`)."""

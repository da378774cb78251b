"""Several servers behind a load balancer and a pooler, on a database with a synchronous replica, loaded and broken."""

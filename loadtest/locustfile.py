# locust

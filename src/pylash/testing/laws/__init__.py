"""Laws: what every host, journal and store promises; conformance suites are made of them."""

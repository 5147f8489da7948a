"""Compares Highwatermark with etcd and PySyncObj in one run on one machine (`make bench`). See README.md."""

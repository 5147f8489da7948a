"""Highwatermark beside etcd and PySyncObj, in one run on one machine: `make bench`. See README.md in this folder."""

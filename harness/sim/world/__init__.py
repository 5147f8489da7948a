"""The simulated machines: members, disks, network and connections, and the probes around the production objects."""

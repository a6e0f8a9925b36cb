"""Research code: topologies of federations of brokers, and the load of each broker."""

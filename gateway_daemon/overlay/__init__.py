"""Overlay among gateways: delivers messages to all subscribers without a broker.

A topic is a contiguous range of keys in a Skip Graph, publishers before subscribers. A
message is a *range multicast* over the subscribers' part: a node that receives a range
splits it and delegates the parts. The methods differ in what a node knows and where it
splits.

============  ===========================  =========================================
method        what a node knows            file
============  ===========================  =========================================
SG            Skip Graph neighbours        `partition` (`split_range`)
PSG           + support nodes (thesis)     `simulation.baselines`
ATM, PATM     + a sorted routing table     `simulation.baselines`
V3, V6        + heads of disjoint ranges   `partition` (`SplitPlan`)
============  ===========================  =========================================

All these are pure functions. `forwarder` (receipts, retries, two trees, priority
queue), `ddll` (join, leave and repair of a list), `skip_graph_node` (one key in its
lists of all levels) and `gateway_node` (all keys of a gateway) are pure state machines.
The simulators use the same ones as the daemon: `runner` is the event loop,
`mqtt_transport` carries frames over MQTT.

Sources: Skip Graph (Aspnes and Shah 2003), SG-TBPS (Banno et al. 2015), ATM-TBPS
(Banno and Shudo 2020), PSG-TBPS and PATM-TBPS (the thesis, seed 003), split-forward
broadcasting (Banno et al. 2020), DDLL (Abe and Yoshida 2015). Implemented from the
papers; no code of others.
"""

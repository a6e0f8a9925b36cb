"""The overlay among gateways: how a message reaches every subscriber without a broker.

A topic is one stretch of the Skip Graph's keys, publishers before subscribers. A
message is a *range multicast* over the subscribers' part: who receives a range cuts
it and hands the pieces on. The methods differ in what a node knows and where it cuts.

============  ===========================  =========================================
method        what a node knows            file
============  ===========================  =========================================
SG            Skip Graph neighbours        `membership`, `skip_graph`, `split`
PSG           + support nodes (thesis)     `support`
ATM, PATM     + a routing table in order   `tables`
V3, V6        + heads of disjoint ranges   `partition`, `postal`, chosen by `policy`
============  ===========================  =========================================

All these are pure functions, and `forwarder` (receipts, retry, two trees), `backlog`
(the urgent first), `ddll` (join, leave and heal a list), `place` (a key in its lists of
all levels) and `node` (a gateway: all its keys) are pure state machines. The simulators
drive the same ones that run live: `live` is the loop, `post` carries frames over MQTT.

Sources: Skip Graph (Aspnes and Shah 2003), SG-TBPS (Banno et al. 2015), ATM-TBPS
(Banno and Shudo 2020), PSG-TBPS and PATM-TBPS (the thesis, seed 003), split-forward
broadcasting (Banno et al. 2020), DDLL (Abe and Yoshida 2015). Written from the
papers' ideas; no code of others.
"""

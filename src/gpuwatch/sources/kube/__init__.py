"""Reads a cluster, live or recorded, and writes to one. Only this room imports the Kubernetes client.

    live.LiveCluster ─────────────────┐ raw JSON of each object        ┌─ nodes, pods, claims
    recorded.RecordedCluster ─────────┴─▶ assemble ─▶ wire (Structs) ─▶┤─ owners ─▶ gangs
                                                                       └─ Cluster, gaps listed

`kinds` is the table of what is listed. What is known of workload frameworks is in the room `frameworks`.
`writer` is the interface of writers and their errors; `live_writer` is the writer.
"""

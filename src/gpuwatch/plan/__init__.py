"""Pure: findings and the state of the cluster become candidates ▸ guards ▸ score ▸ budget ▸ Plan.

Nothing here acts. Every candidate stays in the Plan with all the reasons against it, so that somebody who is
waiting for an action sees at once why it does not come.
"""

"""Variables that a kubelet makes of the Services in a Pod's Namespace: a Service `gpuwatch-run--listen` makes
`GPUWATCH_RUN__LISTEN_PORT=tcp://10.0.0.1:80` and six more. They are of no setting."""

import re
from collections.abc import Mapping

_LINK = re.compile("(?P<service>.+)_PORT_(?P<port>[0-9]+)_(?P<protocol>TCP|UDP|SCTP)")
_ADDRESS = "[0-9A-Fa-f:.]+"


def service_variables(environment: Mapping[str, str]) -> set[str]:
    """Names of the variables that have the value of a Service, as kubelet 1.36 writes it (pkg/kubelet/envvars).

    A Service is recognised by names that each one makes, of its host and of a port, and not by their values: a person
    may set a variable of the same name in the Pod, and another Service may make it. Such a value is judged by itself.
    """
    found = set()
    for link in filter(None, map(_LINK.fullmatch, environment)):
        service, port, protocol = link["service"], link["port"], link["protocol"].lower()
        if f"{service}_SERVICE_HOST" not in environment:
            continue
        url = rf"{protocol}://\[?{_ADDRESS}\]?:{port}"
        made = {name: port for name in environment if name.startswith(f"{service}_SERVICE_PORT_")} | {
            f"{service}_SERVICE_HOST": _ADDRESS,
            f"{service}_SERVICE_PORT": port,
            f"{service}_PORT": url,
            link[0]: url,
            f"{link[0]}_PROTO": protocol,
            f"{link[0]}_PORT": port,
            f"{link[0]}_ADDR": _ADDRESS,
        }
        found |= {name for name, value in made.items() if re.fullmatch(value, environment.get(name, ""))}
    return found

"""The Auth service: reads go to home; a change is for one cluster."""

from __future__ import annotations

from gateway.core.errors import RpcError
from gateway.services.call import Call
from gateway.services.one import named, to_one
from gateway.services.scope import Scope


class Auth:
    """Users and roles belong to one cluster. Changed at home alone they would leave the others open, or shut, so a change over several is
    refused."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def _read(self, call: Call, request: bytes) -> None:
        """At home, or where it is asked for."""
        try:
            cluster = named(self._scope, call) or self._scope.home
        except RpcError as error:
            call.fail(error)
        else:
            cluster.forward(call)

    def _change(self, call: Call, request: bytes) -> None:
        """One cluster."""
        to_one(self._scope, call, request)

    auth_status = authenticate = user_get = user_list = role_get = role_list = _read
    auth_enable = auth_disable = _change
    user_add = user_delete = user_change_password = user_grant_role = user_revoke_role = _change
    role_add = role_delete = role_grant_permission = role_revoke_permission = _change

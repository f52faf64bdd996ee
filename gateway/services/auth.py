"""The Auth service: reads go to home; with several clusters, changes are refused."""

from __future__ import annotations

from gateway.core.errors import Code, RpcError
from gateway.services.call import Call
from gateway.services.one import to_one
from gateway.services.scope import Scope


class Auth:
    """Users and roles belong to one cluster. A change to one of several would leave the others open, or shut."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def _read(self, call: Call, request: bytes) -> None:
        """At home."""
        self._scope.home.forward(call, request)

    def _change(self, call: Call, request: bytes) -> None:
        """One cluster, if it is named or the only one."""
        if self._scope.single or b"shardgate-cluster" in call.metadata:
            to_one(self._scope, call, request)
            return
        names = ", ".join(self._scope.clusters)
        text = f"shardgate: {call.method.name} is not possible over several clusters ({names}); change each through a listener of its own"
        call.fail(RpcError(Code.FAILED_PRECONDITION, text))

    auth_status = authenticate = user_get = user_list = role_get = role_list = _read
    auth_enable = auth_disable = _change
    user_add = user_delete = user_change_password = user_grant_role = user_revoke_role = _change
    role_add = role_delete = role_grant_permission = role_revoke_permission = _change

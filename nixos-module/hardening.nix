# What neither loopd nor llama-server needs, and so does not have. io_uring is in @system-service.
{
  UMask = "0077";
  LimitCORE = 0;
  CapabilityBoundingSet = "";
  AmbientCapabilities = "";
  NoNewPrivileges = true;
  DevicePolicy = "closed";
  KeyringMode = "private";
  LockPersonality = true;
  MemoryDenyWriteExecute = true;
  PrivateDevices = true;
  PrivateIPC = true;
  PrivateMounts = true;
  PrivateTmp = true;
  PrivateUsers = true;
  ProcSubset = "pid";
  ProtectClock = true;
  ProtectControlGroups = true;
  ProtectHome = true;
  ProtectHostname = true;
  ProtectKernelLogs = true;
  ProtectKernelModules = true;
  ProtectKernelTunables = true;
  ProtectProc = "invisible";
  ProtectSystem = "strict";
  RemoveIPC = true;
  RestrictNamespaces = true;
  RestrictRealtime = true;
  RestrictSUIDSGID = true;
  SystemCallArchitectures = "native";
  SystemCallErrorNumber = "EPERM";
  SystemCallFilter = [
    # of its own accord, a tool is put behind walls with the last three
    "@system-service landlock_create_ruleset landlock_add_rule landlock_restrict_self"
    "~@privileged @resources"
  ];
}

# llama-server beside loopd, with exactly the flags that the promise needs.
{
  config,
  lib,
  pkgs,
  utils,
  ...
}:

let
  cfg = config.services.boxmaker;
  serve = cfg.model.serve;
  slots = "${cfg.home}/slots";
  inHome = lib.hasPrefix "${cfg.home}/" "${serve.model}";

  flags = [
    "--model"
    "${serve.model}"
    # nobody but loopd reaches it
    "--host"
    "/run/boxmaker-model/llama.sock"
    # each slot has its own context, and keeps it while it is idle
    "--ctx-size"
    (toString (serve.contextTokens * serve.slots))
    "--parallel"
    (toString serve.slots)
    "--no-kv-unified"
    "--cache-ram"
    "0"
    # the context is never moved under loopd's feet
    "--no-context-shift"
    "--cache-reuse"
    "0"
    "--no-prefill-assistant"
    # where loopd reads back the ids of the tokens, and where a slot can be kept
    "--slot-save-path"
    slots
    "--slots"
    "--metrics"
    # evaluation is done in pieces, and a cancellation waits for the end of one; extraFlags may change it
    "--batch-size"
    "512"
  ]
  ++ lib.optionals (serve.threads != null) [
    "--threads"
    (toString serve.threads)
  ]
  ++ lib.optionals (cfg.apiKeyFile != null) [
    "--api-key-file"
    "/run/credentials/loopd-model.service/model-server-key"
  ]
  ++ serve.extraFlags;
in
{
  config = lib.mkIf (cfg.enable && serve.enable) {
    systemd.tmpfiles.settings.boxmaker.${slots}.d = {
      user = "boxmaker";
      group = "boxmaker";
      mode = "0700";
    };

    # loopd waits for the server by itself, and outlives it. But when a new configuration changes the server, loopd is
    # stopped first: it then saves the slot's cache, which only a server that still runs can do.
    systemd.services.loopd = {
      wants = [ "loopd-model.service" ];
      after = [ "loopd-model.service" ];
      restartTriggers = [ config.systemd.services.loopd-model.serviceConfig.ExecStart ];
    };

    systemd.services.loopd-model = {
      description = "llama-server for boxmaker";
      wantedBy = [ "multi-user.target" ];
      # what is stopped, is stopped before anything is restarted
      stopIfChanged = false;
      environment.GGML_NO_BACKTRACE = "1";
      unitConfig = {
        RequiresMountsFor = [
          slots
          "${serve.model}"
        ];
        StartLimitIntervalSec = 0;
      };
      serviceConfig = import ./hardening.nix // {
        Type = "exec";
        # what a killed server leaves behind
        ExecStartPre = "${lib.getExe' pkgs.coreutils "rm"} -f /run/boxmaker-model/llama.sock";
        ExecStart = "${lib.getExe' serve.package "llama-server"} ${utils.escapeSystemdExecArgs flags}";
        Restart = "always";
        RestartSec = 2;
        TimeoutStopSec = 15;

        User = "boxmaker";
        Group = "boxmaker";
        RuntimeDirectory = "boxmaker-model";
        RuntimeDirectoryMode = "0700";
        # made anew it would belong to root for a moment, and loopd would meet a refusal
        RuntimeDirectoryPreserve = "restart";
        LoadCredential = lib.mkIf (cfg.apiKeyFile != null) [ "model-server-key:${cfg.apiKeyFile}" ];

        # it sees its own folder of the home, and not the conversations
        TemporaryFileSystem = [ "${cfg.home}:ro" ];
        BindPaths = [ slots ];
        BindReadOnlyPaths = lib.mkIf inHome [ "${serve.model}" ];
        ReadWritePaths = [ slots ];

        RestrictAddressFamilies = [ "AF_UNIX" ];
        PrivateNetwork = true;
        IPAddressDeny = "any";
        # a graphics processor, if one was named; its driver may compile code
        PrivateDevices = serve.devices == [ ];
        DeviceAllow = map (device: "${device} rw") serve.devices;
        SupplementaryGroups = lib.mkIf (serve.devices != [ ]) [
          "render"
          "video"
        ];
        MemoryDenyWriteExecute = serve.devices == [ ];
        # the model's size is the machine's business
        LimitMEMLOCK = "infinity";
      };
    };
  };
}

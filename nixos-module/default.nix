# services.boxmaker: loopd as a service, and llama-server beside it.
{
  config,
  lib,
  pkgs,
  ...
}:

let
  cfg = config.services.boxmaker;
  toml = pkgs.formats.toml { };
  # a value of another type is refused by loopd, which reads the file while the system is built
  given = cfg.settings.limits.shutdown_seconds or 20;
  shutdownSeconds = if lib.isInt given then given else 20;

  settingsFile = toml.generate "loopd.toml" cfg.settings;
  # The configuration is read by loopd itself while the system is built: a mistake is an error of the build, not
  # of the board. Only where the built program can run: not when cross-compiling.
  checkedFile =
    if pkgs.stdenv.buildPlatform.canExecute pkgs.stdenv.hostPlatform then
      pkgs.runCommand "loopd.toml" { } ''
        ${lib.getExe' cfg.package "loopd"} check --offline --config ${settingsFile} > effective.toml
        cp ${settingsFile} "$out"
      ''
    else
      settingsFile;
in
{
  imports = [
    ./options.nix
    ./assertions.nix
    ./model-server.nix
  ];

  config = lib.mkIf cfg.enable {
    # What has an option of its own is set here; another definition of it is a conflict that names both places.
    services.boxmaker.settings = {
      daemon = {
        inherit (cfg) home slot;
        socket = "/run/boxmaker/loopd.sock";
      };
      model = lib.mkMerge [
        (lib.mkIf (cfg.apiKeyFile != null) { api_key_file = "model-server-key"; })
        (lib.mkIf cfg.model.serve.enable {
          url = "unix:/run/boxmaker-model/llama.sock";
          slot_dir = "${cfg.home}/slots";
        })
      ];
    };

    environment.systemPackages = [ cfg.package ];
    # where `loopd verify` and the other commands for hands look
    environment.etc."boxmaker/loopd.toml".source = checkedFile;

    users.users.boxmaker = {
      isSystemUser = true;
      group = "boxmaker";
      home = cfg.home;
      description = "boxmaker, the agent";
    };
    # whoever is in the group may use the socket
    users.groups.boxmaker.members = cfg.users;

    systemd.tmpfiles.settings.boxmaker.${cfg.home}.d = {
      user = "boxmaker";
      group = "boxmaker";
      mode = "0700";
    };

    systemd.services.loopd = {
      description = "boxmaker, an agent with a local language model";
      wantedBy = [ "multi-user.target" ];
      unitConfig = {
        RequiresMountsFor = [ cfg.home ];
        # a board has nobody who would start it again
        StartLimitIntervalSec = 0;
      };
      serviceConfig = import ./hardening.nix // {
        Type = "notify";
        # the home and the slot are pinned, and seen here
        ExecStart = lib.concatStringsSep " " [
          (lib.getExe' cfg.package "loopd")
          "serve"
          "--config ${checkedFile}"
          "--home ${cfg.home}"
          "--slot ${toString cfg.slot}"
        ];
        ExecReload = "${lib.getExe' pkgs.coreutils "kill"} -HUP $MAINPID";
        WatchdogSec = 30;
        Restart = "on-failure";
        RestartSec = 2;
        # 78: it can never run as it is configured
        RestartPreventExitStatus = 78;
        # a turn that runs is ended in order first
        TimeoutStopSec = shutdownSeconds + 10;
        # when memory is short, tools and the model server go first; sessions are small
        OOMScoreAdjust = -200;

        User = "boxmaker";
        Group = "boxmaker";
        StateDirectory = lib.mkIf (cfg.home == "/var/lib/boxmaker") "boxmaker";
        StateDirectoryMode = "0700";
        ReadWritePaths = lib.mkIf (cfg.home != "/var/lib/boxmaker") [ cfg.home ];
        RuntimeDirectory = "boxmaker";
        # the group goes through, to the socket
        RuntimeDirectoryMode = "0750";
        LoadCredential = lib.mkIf (cfg.apiKeyFile != null) [ "model-server-key:${cfg.apiKeyFile}" ];

        # a model server or an MCP server on this machine, and nothing beyond
        RestrictAddressFamilies = [
          "AF_UNIX"
          "AF_INET"
          "AF_INET6"
        ];
        IPAddressAllow = "localhost";
        IPAddressDeny = "any";
        SocketBindDeny = "any";
        # io_uring's rings, on kernels that count them as locked memory
        LimitMEMLOCK = "64M";
      };
    };
  };
}

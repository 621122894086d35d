# What a configuration must not say; each message names the option.
{ config, lib, ... }:

let
  cfg = config.services.boxmaker;
  serve = cfg.model.serve;
  url = cfg.settings.model.url or null;
  sysctl = name: toString (config.boot.kernel.sysctl.${name} or "");

  below = folder: cfg.home == folder || lib.hasPrefix "${folder}/" cfg.home;
  # systemd splits and expands a command line; the home is written into one
  plain = builtins.match "/[A-Za-z0-9/._-]*" cfg.home != null;

  secretName =
    name:
    builtins.match ".*(api_?key|password|passwd|secret|token|credential)" (lib.toLower name) != null;
  # the paths of the settings that look as if they held a secret
  secrets =
    path: value:
    if lib.isAttrs value then
      lib.concatLists (
        lib.mapAttrsToList (
          name: inner:
          if lib.isString inner && secretName name then
            [ (lib.concatStringsSep "." (path ++ [ name ])) ]
          else
            secrets (path ++ [ name ]) inner
        ) value
      )
    else if lib.isList value then
      lib.concatMap (secrets path) value
    else if lib.isString value && builtins.match "[a-z]+://[^/]*@.*" value != null then
      [ (lib.concatStringsSep "." path) ]
    else
      [ ];
  found = secrets [ "services.boxmaker.settings" ] cfg.settings;

  ours = [
    "-m"
    "--model"
    "--host"
    "--port"
    "-c"
    "--ctx-size"
    "-np"
    "--parallel"
    "-kvu"
    "--kv-unified"
    "-cram"
    "--cache-ram"
    "--context-shift"
    "--cache-reuse"
    "--prefill-assistant"
    "--slot-save-path"
    "--no-slots"
    "--sleep-idle-seconds"
    "-t"
    "--threads"
    "--api-key"
    "--api-key-file"
  ];
  taken = lib.filter (flag: lib.elem (lib.head (lib.splitString "=" flag)) ours) serve.extraFlags;
in
{
  config.assertions = lib.mkIf cfg.enable [
    {
      assertion =
        !lib.any below [
          "/home"
          "/root"
          "/run"
          "/tmp"
          "/var/tmp"
        ];
      message = "services.boxmaker.home: ${cfg.home} is hidden from the service, or does not survive; use a folder like /var/lib/boxmaker.";
    }
    {
      assertion = plain && cfg.home != "/";
      message = "services.boxmaker.home: ${cfg.home} must be a folder whose path has only letters, digits and / . _ -";
    }
    {
      assertion = serve.enable -> cfg.slot < serve.slots;
      message = "services.boxmaker.slot: ${toString cfg.slot} is not a slot of the server, which has ${toString serve.slots} (services.boxmaker.model.serve.slots, counted from 0).";
    }
    {
      assertion = serve.enable || url != null;
      message = "services.boxmaker.settings.model.url: say where the model server listens, or set services.boxmaker.model.serve.enable.";
    }
    {
      assertion =
        url == null
        || builtins.match "unix:/.*|http://(localhost|127[.][0-9.]+|\\[::1])(:.*|/.*)?" url != null;
      message = "services.boxmaker.settings.model.url: ${toString url} is not on this machine; the service reaches only loopback addresses and Unix sockets.";
    }
    {
      assertion = taken == [ ];
      message = "services.boxmaker.model.serve.extraFlags: ${lib.concatStringsSep " " taken} is set by the module, because loopd's promise depends on it.";
    }
    {
      assertion = sysctl "kernel.io_uring_disabled" != "2";
      message = "boot.kernel.sysctl.\"kernel.io_uring_disabled\": 2 forbids io_uring, without which services.boxmaker cannot run.";
    }
    {
      assertion = sysctl "kernel.io_uring_disabled" == "1" -> sysctl "kernel.io_uring_group" != "";
      message = "boot.kernel.sysctl.\"kernel.io_uring_disabled\": 1 allows io_uring to a group alone; name the group boxmaker's number in \"kernel.io_uring_group\", or services.boxmaker cannot run.";
    }
    {
      assertion = found == [ ];
      message = "${lib.concatStringsSep ", " found}: looks like a secret, and everybody can read the settings; use services.boxmaker.apiKeyFile, or a file that the tool reads itself.";
    }
  ];
}

# What a configuration must not say; each message names the option.
{ config, lib, ... }:

let
  cfg = config.services.boxmaker;
  serve = cfg.model.serve;
  url = cfg.settings.model.url or null;
  sysctl = name: toString (config.boot.kernel.sysctl.${name} or "");

  below = path: folder: path == folder || lib.hasPrefix "${folder}/" path;
  # systemd splits and expands what it reads, and takes no path that could be written shorter
  plain =
    path:
    builtins.match "/[A-Za-z0-9/._+=?-]*[A-Za-z0-9._+=?-]" path != null
    && builtins.match ".*/(/|[.]{1,2}/|[.]{1,2}$).*" path == null;
  plainly = "must be a path of letters, digits and / . _ + -, without . and .. as folders and without a / that it does not need";
  # what the services do not see of the machine
  hidden = [
    "/home"
    "/root"
    "/run/user"
    "/tmp"
    "/var/tmp"
    "/dev"
    "/proc"
  ];
  model = lib.optionalString serve.enable "${serve.model}";
  inFolder = folders: path: lib.any (below path) folders;

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
    "--api-prefix"
    "--no-cache-prompt"
    "--embedding"
    "--embeddings"
    "--rerank"
    "--reranking"
    "--ssl-key-file"
    "--ssl-cert-file"
  ];
  taken = lib.filter (flag: lib.elem (lib.head (lib.splitString "=" flag)) ours) serve.extraFlags;
in
{
  # users may be made by hand, too, so this is no error
  config.warnings = lib.mkIf cfg.enable (
    map (
      name:
      "services.boxmaker.users: ${name} is not in users.users; unless that user comes from elsewhere, nobody gets to talk to loopd by it."
    ) (lib.filter (name: !(config.users.users ? ${name})) cfg.users)
  );

  config.assertions = lib.mkIf cfg.enable [
    {
      assertion = !inFolder (hidden ++ [ "/run" ]) cfg.home;
      message = "services.boxmaker.home: ${cfg.home} is hidden from the service, or does not survive; use a folder like /var/lib/boxmaker.";
    }
    {
      assertion = plain cfg.home;
      message = "services.boxmaker.home: ${cfg.home} ${plainly}.";
    }
    {
      # it is given to the user boxmaker, and nobody else gets in
      assertion =
        !lib.elem cfg.home [
          "/"
          "/mnt"
          "/opt"
          "/srv"
          "/var"
          "/var/cache"
          "/var/lib"
          "/var/log"
        ]
        && !inFolder [
          "/bin"
          "/boot"
          "/etc"
          "/lib"
          "/nix"
          "/sys"
          "/usr"
        ] cfg.home;
      message = "services.boxmaker.home: ${cfg.home} belongs to the system; use a folder of its own, like /var/lib/boxmaker.";
    }
    {
      assertion = serve.enable -> lib.hasPrefix builtins.storeDir model || !inFolder hidden model;
      message = "services.boxmaker.model.serve.model: ${model} is hidden from the service; put it elsewhere, such as /var/lib/models.";
    }
    {
      assertion = serve.enable -> plain model;
      message = "services.boxmaker.model.serve.model: ${model} ${plainly}.";
    }
    {
      assertion = serve.enable -> lib.all (device: plain device && below device "/dev") serve.devices;
      message = "services.boxmaker.model.serve.devices: ${lib.concatStringsSep " " serve.devices}: each must be a path below /dev, such as /dev/dri/renderD128.";
    }
    {
      assertion = cfg.apiKeyFile == null || plain cfg.apiKeyFile;
      message = "services.boxmaker.apiKeyFile: ${toString cfg.apiKeyFile} ${plainly}.";
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

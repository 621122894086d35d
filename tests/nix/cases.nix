# Configurations and what the module must make of them: accept, or refuse with words that name the option.
let
  serve = {
    enable = true;
    model.serve = {
      enable = true;
      model = "/opt/models/small.gguf";
    };
  };
  with' = more: { services.boxmaker = serve // more; };
  withServe = more: with' { model.serve = serve.model.serve // more; };
in
[
  {
    name = "a server of its own";
    config.users.users.alice.isNormalUser = true;
    config.services.boxmaker = serve // {
      users = [ "alice" ];
      settings.limits.turn_seconds = 600;
      settings.tools.command.greet = {
        program = "/run/current-system/sw/bin/echo";
        args = [ "hello" ];
        description = "Greets.";
        policy = "allow";
      };
    };
  }
  {
    name = "another home, slot and key";
    config = {
      services.boxmaker = serve // {
        home = "/mnt/data/boxmaker";
        slot = 1;
        apiKeyFile = "/run/keys/model";
        model.serve = serve.model.serve // {
          slots = 2;
          threads = 3;
          extraFlags = [
            "-b"
            "512"
          ];
        };
      };
    };
  }
  {
    name = "a server elsewhere on the machine";
    config.services.boxmaker = {
      enable = true;
      settings.model.url = "http://127.0.0.1:8080";
    };
  }
  {
    name = "a schema may speak of passwords";
    config = with' {
      settings.tools.command.vault = {
        program = "/run/current-system/sw/bin/true";
        description = "Opens.";
        schema = {
          type = "object";
          properties.password.type = "string";
        };
      };
    };
  }
  {
    name = "paths without quotes, which are not copied to the store";
    config = with' {
      home = /mnt/data/boxmaker;
      apiKeyFile = /run/keys/model;
    };
    unit = "LoadCredential=model-server-key:/run/keys/model\n";
  }
  {
    name = "a model in the home";
    config = withServe { model = "/var/lib/boxmaker/models/small+new.gguf"; };
    unit = "BindReadOnlyPaths=/var/lib/boxmaker/models/small+new.gguf\n";
  }
  {
    name = "flags with what systemd would expand";
    config = withServe {
      extraFlags = [
        "--alias"
        "50 % of ${"$"}HOME, \"ü\""
      ];
    };
    unit = ''"50 %% of ${"$$"}HOME, \"ü\""'';
  }
  {
    name = "more time for the end";
    config = with' { settings.limits.shutdown_seconds = 45; };
    unit = "TimeoutStopSec=55\n";
  }
  {
    name = "a time that is none, which the check of the file refuses";
    config = with' { settings.limits.shutdown_seconds = "soon"; };
    unit = "TimeoutStopSec=30\n";
  }
  {
    name = "a user that is not there";
    config = with' { users = [ "alcie" ]; };
    warns = "services.boxmaker.users: alcie is not in users.users";
  }
  {
    name = "no server at all";
    config.services.boxmaker.enable = true;
    refused = "services.boxmaker.settings.model.url: say where";
  }
  {
    name = "a server on another machine";
    config.services.boxmaker = {
      enable = true;
      settings.model.url = "http://192.168.1.2:8080";
    };
    refused = "services.boxmaker.settings.model.url: http://192.168.1.2:8080 is not on this machine";
  }
  {
    name = "a home that the service cannot see";
    config = with' { home = "/home/alice/boxmaker"; };
    refused = "services.boxmaker.home: /home/alice/boxmaker is hidden";
  }
  {
    name = "a home that a command line would split";
    config = with' { home = "/srv/box maker"; };
    refused = "services.boxmaker.home: /srv/box maker must be";
  }
  {
    name = "a home that systemd would expand";
    config = with' { home = "/srv/%h"; };
    refused = "services.boxmaker.home: /srv/%h must be";
  }
  {
    name = "a home with a slash at its end";
    config = with' { home = "/var/lib/boxmaker/"; };
    refused = "services.boxmaker.home: /var/lib/boxmaker/ must be";
  }
  {
    name = "a home by a detour";
    config = with' { home = "/var/lib/../../home/alice"; };
    refused = "services.boxmaker.home: /var/lib/../../home/alice must be";
  }
  {
    name = "a home with a double slash";
    config = with' { home = "/srv//boxmaker"; };
    refused = "services.boxmaker.home: /srv//boxmaker must be";
  }
  {
    name = "a home that is the system's";
    config = with' { home = "/var/lib"; };
    refused = "services.boxmaker.home: /var/lib belongs to the system";
  }
  {
    name = "a home among the system's files";
    config = with' { home = "/etc/boxmaker"; };
    refused = "services.boxmaker.home: /etc/boxmaker belongs to the system";
  }
  {
    name = "a model that the service cannot see";
    config = withServe { model = "/home/alice/small.gguf"; };
    refused = "services.boxmaker.model.serve.model: /home/alice/small.gguf is hidden";
  }
  {
    name = "a model that a list of paths would split";
    config = withServe { model = "/opt/my model.gguf"; };
    refused = "services.boxmaker.model.serve.model: /opt/my model.gguf must be";
  }
  {
    name = "a device that is none";
    config = withServe { devices = [ "renderD128" ]; };
    refused = "services.boxmaker.model.serve.devices: renderD128: each must be";
  }
  {
    name = "a key's path that systemd would expand";
    config = with' { apiKeyFile = "/run/keys/100%"; };
    refused = "services.boxmaker.apiKeyFile: /run/keys/100% must be";
  }
  {
    name = "a relative home";
    config = with' { home = "boxmaker"; };
    refused = "evaluation failed";
  }
  {
    name = "a home in the store";
    config = with' { home = "${builtins.storeDir}/00000000000000000000000000000000-home"; };
    refused = "evaluation failed";
  }
  {
    name = "a slot that the server has not";
    config = with' { slot = 1; };
    refused = "services.boxmaker.slot: 1 is not a slot of the server, which has 1";
  }
  {
    name = "a slot out of range";
    config = with' { slot = 1024; };
    refused = "evaluation failed";
  }
  {
    name = "a flag that the promise depends on";
    config.services.boxmaker = serve // {
      model.serve = serve.model.serve // {
        extraFlags = [
          "--context-shift"
          "--cache-ram=100"
        ];
      };
    };
    refused = "services.boxmaker.model.serve.extraFlags: --context-shift --cache-ram=100 is set by the module";
  }
  {
    name = "a flag that switches the cache off";
    config = withServe { extraFlags = [ "--no-cache-prompt" ]; };
    refused = "services.boxmaker.model.serve.extraFlags: --no-cache-prompt is set by the module";
  }
  {
    name = "io_uring forbidden";
    config = with' { } // {
      boot.kernel.sysctl."kernel.io_uring_disabled" = 2;
    };
    refused = "kernel.io_uring_disabled\": 2 forbids";
  }
  {
    name = "io_uring for a group that is not named";
    config = with' { } // {
      boot.kernel.sysctl."kernel.io_uring_disabled" = 1;
    };
    refused = "kernel.io_uring_disabled\": 1 allows";
  }
  {
    name = "a secret in the settings";
    config = with' { settings.tools.command.mail.api_key = "x"; };
    refused = "services.boxmaker.settings.tools.command.mail.api_key: looks like a secret";
  }
  {
    name = "a password in a URL";
    config = with' { settings.tools.mcp.notes.url = "http://alice:x@127.0.0.1/mcp"; };
    refused = "services.boxmaker.settings.tools.mcp.notes.url: looks like a secret";
  }
  {
    name = "an option that is not there";
    config = with' { user = "alice"; };
    refused = "evaluation failed";
  }
]

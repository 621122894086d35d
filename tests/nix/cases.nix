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
in
[
  {
    name = "a server of its own";
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

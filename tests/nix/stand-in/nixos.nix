# nixosSystem: the options of NixOS that this project's module, board and tests define, and unit files made of them.
{ lib, packages }:
{ modules }:

let
  inherit (lib) mkOption types;
  anything = mkOption {
    type = types.anything;
    default = { };
  };

  service = types.submodule {
    options = {
      description = mkOption {
        type = types.str;
        default = "";
      };
      wantedBy = names;
      wants = names;
      after = names;
      restartTriggers = names;
      stopIfChanged = mkOption {
        type = types.bool;
        default = true;
      };
      environment = mkOption {
        type = types.attrsOf types.str;
        default = { };
      };
      unitConfig = directives;
      serviceConfig = directives;
    };
  };
  names = mkOption {
    type = types.listOf types.str;
    default = [ ];
  };
  directives = mkOption {
    type = types.attrsOf types.anything;
    default = { };
  };

  # one line a value; a list is several lines
  lines =
    name: value:
    lib.concatStringsSep "" (
      map (v: "${name}=${if lib.isBool v then lib.boolToString v else toString v}\n") (
        if lib.isList value then value else [ value ]
      )
    );
  section =
    title: values: "[${title}]\n" + lib.concatStringsSep "" (lib.mapAttrsToList lines values) + "\n";
  words = name: list: lib.optionalAttrs (list != [ ]) { ${name} = toString list; };
  text =
    s:
    section "Unit" (
      { Description = s.description; } // words "Wants" s.wants // words "After" s.after // s.unitConfig
    )
    + section "Service" (
      lib.optionalAttrs (s.environment != { }) {
        Environment = lib.mapAttrsToList (k: v: ''"${k}=${v}"'') s.environment;
      }
      // s.serviceConfig
    )
    + section "Install" (words "WantedBy" s.wantedBy);

  base =
    { config, lib, ... }:
    let
      pkgs = packages config.nixpkgs.hostPlatform;
    in
    {
      options = {
        assertions = mkOption {
          type = types.listOf types.anything;
          default = [ ];
        };
        warnings = mkOption {
          type = types.listOf types.str;
          default = [ ];
        };
        nix.settings = anything;
        nixpkgs.hostPlatform = mkOption { type = types.str; };
        system.stateVersion = mkOption { type = types.str; };
        system.build.toplevel = mkOption { type = types.anything; };
        networking.hostName = mkOption {
          type = types.str;
          default = "nixos";
        };
        environment.systemPackages = mkOption {
          type = types.listOf types.package;
          default = [ ];
        };
        environment.etc = anything;
        boot.isContainer = mkOption {
          type = types.bool;
          default = false;
        };
        boot.kernel.sysctl = anything;
        security.sudo = anything;
        services.openssh = anything;
        zramSwap = anything;
        users.users = anything;
        users.groups = anything;
        systemd.tmpfiles.settings = anything;
        systemd.units = mkOption { type = types.anything; };
        systemd.services = mkOption {
          type = types.attrsOf service;
          default = { };
        };
      };
      config = {
        systemd.units = lib.mapAttrs' (
          name: s:
          lib.nameValuePair "${name}.service" {
            text = text s;
            unit = pkgs.runCommand "unit-${name}" {
              text = text s;
              passAsFile = [ "text" ];
            } ''mkdir "$out"; cp "$textPath" "$out/${name}.service"'';
          }
        ) config.systemd.services;
        system.build.toplevel =
          let
            failed = map (a: a.message) (lib.filter (a: !a.assertion) config.assertions);
          in
          if failed != [ ] then
            throw "Failed assertions: ${lib.concatStringsSep "; " failed}"
          else
            pkgs.runCommand "nixos-system-${config.networking.hostName}" {
              units = lib.mapAttrsToList (_: unit: unit.text) config.systemd.units;
            } ''printf '%s\n' "$units" > "$out"'';
      };
    };

  evaluated = lib.evalModules {
    modules = [ base ] ++ modules;
    specialArgs = {
      pkgs = packages evaluated.config.nixpkgs.hostPlatform;
      utils.escapeSystemdExecArgs = lib.concatMapStringsSep " " (
        a: ''"${builtins.replaceStrings [ "\\" ''"'' "%" "$" ] [ "\\\\" ''\"'' "%%" "$$" ] a}"''
      );
    };
  };
in
evaluated

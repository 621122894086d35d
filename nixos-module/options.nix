# The options of services.boxmaker.
{ lib, pkgs, ... }:

let
  inherit (lib) mkEnableOption mkOption types;
in
{
  options.services.boxmaker = {
    enable = mkEnableOption "boxmaker, an always-on agent with a local language model";

    package = mkOption {
      type = types.package;
      default = pkgs.callPackage ./package.nix { };
      defaultText = lib.literalExpression "boxmaker";
      description = "The package with `loopd` and `bxctl`.";
    };

    home = mkOption {
      type = types.externalPath;
      # a path that is written without quotes would be copied to the store where it is used
      apply = toString;
      default = "/var/lib/boxmaker";
      example = "/mnt/data/boxmaker";
      description = ''
        The folder that holds the sessions. It belongs to this machine and to [](#opt-services.boxmaker.slot): loopd
        refuses one that was made for another until `loopd adopt` was run for it.
      '';
    };

    slot = mkOption {
      type = types.ints.between 0 1023;
      default = 0;
      description = "The model server's slot that belongs to loopd alone.";
    };

    users = mkOption {
      type = types.listOf types.str;
      default = [ ];
      example = [ "alice" ];
      description = "Who may talk to loopd: they become members of the group `boxmaker`.";
    };

    settings = mkOption {
      type = types.submodule { freeformType = (pkgs.formats.toml { }).type; };
      default = { };
      example = {
        limits.turn_seconds = 600;
        model.sampling.temperature = 0.7;
      };
      description = ''
        loopd's configuration: the tables and keys of its TOML file, one to one. It is checked when the system is built.
        No secret belongs here, since everybody can read it.
      '';
    };

    apiKeyFile = mkOption {
      type = types.nullOr types.externalPath;
      apply = file: if file == null then null else toString file;
      default = null;
      example = "/run/keys/model-server";
      description = ''
        A file with the model server's API key on one line. systemd reads it as root and hands it to loopd alone; it
        is not copied to the store.
      '';
    };

    model.serve = {
      enable = mkEnableOption ''
        a llama-server for loopd alone, on a Unix socket, with the flags that loopd's promise needs. Without it, set
        `services.boxmaker.settings.model.url`'';

      package = mkOption {
        type = types.package;
        default = pkgs.llama-cpp;
        defaultText = lib.literalExpression "pkgs.llama-cpp";
        example = lib.literalExpression "pkgs.llama-cpp.override { vulkanSupport = true; }";
        description = "The package with `llama-server`.";
      };

      model = mkOption {
        type = types.path;
        example = "/var/lib/models/model.gguf";
        description = ''
          The model: a GGUF file that the user `boxmaker` can read, outside `/home`, `/root` and `/tmp`, or a path in the
          store. Until it is there the server looks for it every two seconds.
        '';
      };

      contextTokens = mkOption {
        type = types.ints.positive;
        default = 8192;
        description = "The size of each slot's context, in tokens. A session's prompt and answers must fit into it.";
      };

      slots = mkOption {
        type = types.ints.between 1 1024;
        default = 1;
        description = ''
          How many slots the server has. loopd uses one; the others would be for programs of your own, which share
          the memory and the processor.
        '';
      };

      threads = mkOption {
        type = types.nullOr types.ints.positive;
        default = null;
        example = 3;
        description = ''
          How many threads compute. Left to llama-server when null; one less than the machine has cores leaves room
          for everything else.
        '';
      };

      devices = mkOption {
        type = types.listOf types.str;
        default = [ ];
        example = [ "/dev/dri/renderD128" ];
        description = "Devices that the server may use, such as a graphics processor.";
      };

      extraFlags = mkOption {
        type = types.listOf types.str;
        default = [ ];
        example = [
          "--n-gpu-layers"
          "99"
        ];
        description = "Further flags of `llama-server`; not those that the module sets.";
      };
    };
  };
}

# The module in a NixOS virtual machine: a conversation that outlives a reboot and a power cut.
{ module, boxmaker }:

{ pkgs, ... }:

{
  name = "boxmaker";

  nodes.machine = {
    imports = [ module ];
    virtualisation = {
      cores = 2;
      memorySize = 2048;
      diskSize = 2048;
    };

    users.users.alice.isNormalUser = true;
    users.users.mallory.isNormalUser = true;

    services.boxmaker = {
      enable = true;
      package = boxmaker;
      users = [ "alice" ];
      settings = {
        limits.completion_tokens = 48;
        model.sampling.temperature = 0;
      };
      model.serve = {
        enable = true;
        model = pkgs.callPackage ../../nixos-module/demo-model.nix { };
        contextTokens = 2048;
        threads = 1;
      };
    };
  };

  testScript = builtins.readFile ./vm.py;
}

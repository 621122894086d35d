# An example to copy: an aarch64 board that boots from an SD card and serves one conversation partner.
#
#   nix build .#nixosConfigurations.board.config.system.build.sdImage
#
# What to change is marked with CHANGE; docs/install.md goes through it step by step. For the kernel and the
# firmware of a particular board, add its module of nixos-hardware.
{ config, lib, ... }:

{
  nixpkgs.hostPlatform = "aarch64-linux";
  system.stateVersion = "26.05";
  networking.hostName = "board"; # CHANGE

  users.users.alice = {
    # CHANGE
    isNormalUser = true;
    extraGroups = [
      "wheel"
      "systemd-journal"
    ];
    openssh.authorizedKeys.keys = [ ]; # CHANGE: without a key nobody gets in
  };
  warnings =
    lib.optional (config.users.users.alice.openssh.authorizedKeys.keys == [ ])
      "nixos-module/board.nix: users.users.alice.openssh.authorizedKeys.keys is empty, so nobody can log in to the board.";
  security.sudo.wheelNeedsPassword = false;
  # takes a new configuration that another machine has built
  nix.settings.trusted-users = [ "@wheel" ];
  services.openssh = {
    enable = true;
    settings.PasswordAuthentication = false;
  };

  services.boxmaker = {
    enable = true;
    users = [ "alice" ]; # CHANGE
    model.serve = {
      enable = true;
      # copied there by hand: models are large, and no part of the system
      model = "/var/lib/models/model.gguf"; # CHANGE
      contextTokens = 8192;
      threads = 3; # CHANGE: one less than the board has cores
    };
  };

  # the journal survives a power cut, and does not fill the card
  environment.etc."systemd/journald.conf.d/board.conf".text = ''
    [Journal]
    Storage=persistent
    SystemMaxUse=200M
  '';
  # the model is read from the page cache; swapping on a card only wears it
  zramSwap.enable = lib.mkDefault true;
}

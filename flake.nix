# The table of contents: what each output is made of is in the files named here.
{
  description = "An always-on agent for a small board with a local language model";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  outputs =
    { self, nixpkgs }:
    let
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      eachSystem = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
      package = pkgs: pkgs.callPackage ./nixos-module/package.nix { };
    in
    {
      packages = eachSystem (pkgs: rec {
        boxmaker = package pkgs;
        default = boxmaker;
      });

      # `nix run` is a conversation; `.#loopd` and `.#bxctl` are the plain programs
      apps = eachSystem (pkgs: pkgs.callPackage ./nixos-module/apps.nix { boxmaker = package pkgs; });

      overlays.default = final: _previous: { boxmaker = package final; };

      nixosModules.default = ./nixos-module;

      # an example to copy: a whole board, and the image of its SD card
      nixosConfigurations.board = nixpkgs.lib.nixosSystem {
        modules = [
          "${nixpkgs}/nixos/modules/installer/sd-card/sd-image-aarch64.nix"
          self.nixosModules.default
          ./nixos-module/board.nix
        ];
      };

      checks = eachSystem (
        pkgs:
        import ./tests/nix/checks.nix {
          inherit pkgs;
          inherit (nixpkgs.lib) nixosSystem;
          boxmaker = package pkgs;
          module = self.nixosModules.default;
        }
      );

      devShells = eachSystem (pkgs: {
        default = pkgs.callPackage ./nixos-module/shell.nix { boxmaker = package pkgs; };
      });

      formatter = eachSystem (pkgs: pkgs.nixfmt-tree);
    };
}

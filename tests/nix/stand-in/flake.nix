# A stand-in for the nixpkgs input, for machines without nixpkgs: the few things that this project's flake uses.
# tests/nix/run copies it beside a host.json that says where the machine's own tools are.
{
  description = "stand-in for nixpkgs";

  outputs =
    _:
    let
      lib = import ./lib.nix // {
        nixosSystem = import ./nixos.nix { inherit lib packages; };
      };
      host = builtins.fromJSON (builtins.readFile ./host.json);
      packages = system: import ./packages.nix { inherit lib host system; };
    in
    {
      inherit lib;
      legacyPackages = lib.genAttrs [ "x86_64-linux" "aarch64-linux" ] packages;
    };
}

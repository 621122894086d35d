# What `nix run` starts.
{
  lib,
  callPackage,
  boxmaker,
}:

let
  app = description: program: {
    type = "app";
    inherit program;
    meta = { inherit description; };
  };
in
rec {
  default = demo;
  demo = app "A conversation with a small model" (
    lib.getExe (callPackage ./demo.nix { inherit boxmaker; })
  );
  loopd = app "The daemon" (lib.getExe' boxmaker "loopd");
  bxctl = app "The terminal client" (lib.getExe' boxmaker "bxctl");
}

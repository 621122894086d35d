# `nix run`: a model server, loopd and a chat, for one user on a machine of any kind.
{
  callPackage,
  writeShellApplication,
  coreutils,
  llama-cpp,
  boxmaker,
}:

writeShellApplication {
  name = "boxmaker-demo";
  runtimeInputs = [
    boxmaker
    coreutils
    llama-cpp
  ];
  runtimeEnv.SMALL_MODEL = "${callPackage ./demo-model.nix { }}";
  text = builtins.readFile ./demo.sh;
  meta.description = "Talk to a small model through boxmaker";
}

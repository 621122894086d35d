# The option of the real module that the example board's documentation names.
{ lib, config, ... }:
{
  options.system.build.sdImage = lib.mkOption { type = lib.types.raw; };
  config.system.build.sdImage = config.system.build.toplevel;
}

# The functions of nixpkgs' lib that this project's Nix files use, as small as can be. For tests alone.
let
  inherit (builtins)
    all
    any
    attrNames
    concatLists
    concatMap
    concatStringsSep
    elem
    filter
    hasAttr
    head
    isAttrs
    isBool
    isFunction
    isInt
    isList
    isString
    length
    listToAttrs
    map
    mapAttrs
    replaceStrings
    stringLength
    substring
    ;

  self = {
    inherit
      all
      any
      concatLists
      concatMap
      concatStringsSep
      elem
      filter
      head
      isAttrs
      isBool
      isFunction
      isInt
      isList
      isString
      length
      listToAttrs
      mapAttrs
      stringLength
      ;

    nameValuePair = name: value: { inherit name value; };
    genAttrs = names: make: listToAttrs (map (n: self.nameValuePair n (make n)) names);
    mapAttrsToList = f: set: map (n: f n set.${n}) (attrNames set);
    mapAttrs' = f: set: listToAttrs (self.mapAttrsToList f set);
    optional = condition: x: if condition then [ x ] else [ ];
    optionals = condition: xs: if condition then xs else [ ];
    optionalAttrs = condition: set: if condition then set else { };
    optionalString = condition: text: if condition then text else "";
    unique = builtins.foldl' (kept: x: if elem x kept then kept else kept ++ [ x ]) [ ];

    hasPrefix = prefix: text: substring 0 (stringLength prefix) text == prefix;
    hasInfix = part: text: length (self.splitString part text) > 1;
    splitString = separator: text: filter isString (builtins.split (self.escapeRegex separator) text);
    escapeRegex =
      let
        special = self.chars "\\[{()^$?*+|.";
      in
      replaceStrings special (map (c: "\\${c}") special);
    chars = text: builtins.genList (i: substring i 1 text) (stringLength text);
    toLower = replaceStrings (self.chars "ABCDEFGHIJKLMNOPQRSTUVWXYZ") (
      self.chars "abcdefghijklmnopqrstuvwxyz"
    );
    boolToString = b: if b then "true" else "false";
    concatMapStringsSep =
      separator: f: xs:
      concatStringsSep separator (map f xs);
    escapeShellArg = text: "'${replaceStrings [ "'" ] [ "'\\''" ] (toString text)}'";

    importTOML = path: builtins.fromTOML (builtins.readFile path);
    getExe = package: self.getExe' package package.meta.mainProgram;
    getExe' = package: name: "${package}/bin/${name}";
    licenses = {
      mit.spdxId = "MIT";
      asl20.spdxId = "Apache-2.0";
    };
    platforms.linux = [
      "x86_64-linux"
      "aarch64-linux"
    ];
    callPackageWith =
      scope: file: overrides:
      let
        function = if isFunction file then file else import file;
        wanted = builtins.functionArgs function;
        missing = filter (n: !(hasAttr n scope || hasAttr n overrides || wanted.${n})) (attrNames wanted);
      in
      if missing != [ ] then
        throw "the stand-in for nixpkgs has no ${concatStringsSep ", " missing}"
      else
        function (builtins.intersectAttrs wanted scope // overrides);

    fileset = {
      unions = parts: parts;
      toSource =
        { root, fileset }:
        let
          wanted = map toString fileset;
          below = folder: path: self.hasPrefix "${folder}/" path;
        in
        assert all (
          path: builtins.pathExists path || throw "fileset: ${toString path} does not exist"
        ) fileset;
        builtins.path {
          path = root;
          name = "source";
          filter = path: _: any (w: path == w || below w path || below path w) wanted;
        };
    };
  }
  // import ./modules.nix { lib = self; };
in
self

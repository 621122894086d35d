# A small module system: options with types, definitions with conditions and priorities, submodules. Errors are throws
# that name the option.
{ lib }:

let
  inherit (builtins)
    attrNames
    concatMap
    elem
    filter
    foldl'
    head
    isAttrs
    isList
    isString
    mapAttrs
    toJSON
    ;
  inherit (lib)
    all
    any
    concatStringsSep
    hasPrefix
    listToAttrs
    nameValuePair
    unique
    ;

  kind = x: if isAttrs x then x._type or "" else "";
  isPlain = x: isAttrs x && !(x ? outPath) && kind x == "";
  dotted = concatStringsSep ".";

  # a definition without its conditions: none, one, or several
  discharge =
    d:
    if kind d == "if" then
      (if d.condition then discharge d.content else [ ])
    else if kind d == "merge" then
      concatMap discharge d.contents
    else
      [ d ];

  # a definition of a tree, with conditions and priorities moved one level down; conditions stay unevaluated
  push =
    d:
    if kind d == "if" then
      map (mapAttrs (_: mkIf d.condition)) (push d.content)
    else if kind d == "merge" then
      concatMap push d.contents
    else if kind d == "override" then
      map (mapAttrs (_: mkOverride d.priority)) (push d.content)
    else
      [ d ];

  # values with their priorities
  leaves =
    d:
    if kind d == "override" then
      concatMap (x: map (y: y // { inherit (d) priority; }) (leaves x)) (discharge d.content)
    else
      [
        {
          priority = 100;
          value = d;
        }
      ];

  mkIf = condition: content: {
    _type = "if";
    inherit condition content;
  };
  mkOverride = priority: content: {
    _type = "override";
    inherit priority content;
  };

  merge =
    path: option: definitions:
    let
      found = concatMap leaves (concatMap discharge definitions);
      best = foldl' (a: x: if x.priority < a then x.priority else a) 9999 found;
      values = map (x: x.value) (filter (x: x.priority == best) found);
      bad = filter (v: !(option.type.check v)) values;
      checked =
        given:
        if all option.type.check given then
          option.type.merge path given
        else
          throw "A definition for option `${dotted path}' is not of type `${option.type.name}': ${toJSON bad}";
    in
    if values != [ ] then
      (option.apply or (x: x)) (checked values)
    else if option ? default then
      (option.apply or (x: x)) (checked [ option.default ])
    else if option.type ? tree then
      checked [ { } ]
    else
      throw "The option `${dotted path}' was accessed but has no value defined.";

  # a tree of options, with what the definitions say; what no option describes is of the free form, if there is one
  evaluate =
    path: options: definitions: freeform:
    let
      flat = concatMap push definitions;
      at = n: concatMap (d: if d ? ${n} then [ d.${n} ] else [ ]) flat;
      value =
        n: o:
        if kind o == "option" then
          merge (path ++ [ n ]) o (at n)
        else
          evaluate (path ++ [ n ]) o (at n) null;
      extra = filter (n: !(options ? ${n})) (unique (concatMap attrNames flat));
      given = filter (n: concatMap discharge (at n) != [ ]) extra;
      free = n: nameValuePair n (merge (path ++ [ n ]) { type = freeform; } (at n));
    in
    if extra == [ ] then
      mapAttrs value options
    else if freeform != null then
      listToAttrs (map free given) // mapAttrs value options
    else
      throw "The option `${dotted (path ++ [ (head extra) ])}' does not exist.";

  # the same for each value of an attribute set
  evaluateAttrs =
    type: path: values:
    let
      flat = concatMap push values;
      at = n: concatMap (d: if d ? ${n} then discharge d.${n} else [ ]) flat;
      names = filter (n: at n != [ ]) (unique (concatMap attrNames flat));
    in
    listToAttrs (map (n: nameValuePair n (merge (path ++ [ n ]) { inherit type; } (at n))) names);

  type = name: check: merge: { inherit name check merge; };
  equal =
    path: values:
    if length' (unique values) == 1 then
      head values
    else
      throw "The option `${dotted path}' has conflicting definition values: ${toJSON values}";
  length' = builtins.length;
  simple = name: check: type name check equal;
  isPath = x: builtins.isPath x || (isString x && hasPrefix "/" x) || (isAttrs x && x ? outPath);

  types = {
    bool = simple "boolean" builtins.isBool;
    int = simple "signed integer" builtins.isInt;
    float = simple "floating point number" builtins.isFloat;
    str = simple "string" isString;
    path = simple "absolute path" isPath;
    externalPath = simple "absolute path not in the Nix store" (
      x: isPath x && !(hasPrefix builtins.storeDir (toString x))
    );
    package = type "package" (x: isAttrs x && x ? outPath) (_: head);
    raw = types.anything;
    ints = {
      positive = simple "positive integer" (x: builtins.isInt x && x > 0);
      between =
        low: high:
        simple "integer between ${toString low} and ${toString high}" (
          x: builtins.isInt x && x >= low && x <= high
        );
    };
    # attribute sets are merged, and all else must be equal
    anything = type "anything" (_: true) (
      path: values:
      if all isPlain values then evaluateAttrs types.anything path values else equal path values
    );
    nullOr =
      inner:
      type "null or ${inner.name}" (x: x == null || inner.check x) (
        path: values: if all (x: x == null) values then null else inner.merge path values
      );
    listOf =
      inner:
      type "list of ${inner.name}" (x: isList x && all inner.check (concatMap discharge x)) (
        path: values: map (v: inner.merge path [ v ]) (concatMap (concatMap discharge) values)
      );
    attrsOf = inner: type "attribute set of ${inner.name}" isAttrs (evaluateAttrs inner);
    oneOf =
      choices:
      type "one of several types" (x: any (t: t.check x) choices) (
        path: values:
        let
          fitting = filter (t: all t.check values) choices;
        in
        if fitting == [ ] then equal path values else (head fitting).merge path values
      );
    toml =
      with types;
      oneOf [
        bool
        int
        float
        str
        path
        (attrsOf toml)
        (listOf toml)
      ]
      // {
        name = "TOML value";
      };
    submodule =
      {
        options ? { },
        freeformType ? null,
      }:
      type "submodule" isAttrs (path: values: evaluate path options values freeformType)
      // {
        tree = true;
      };
  };

  # options of several modules, in one tree
  mergeOptions =
    a: b:
    a
    // mapAttrs (n: v: if isPlain v && a ? ${n} && isPlain a.${n} then mergeOptions a.${n} v else v) b;
  # every option must say what it is
  undescribed =
    path: options:
    concatMap (
      n:
      let
        o = options.${n};
        here = path ++ [ n ];
      in
      if kind o != "option" then
        undescribed here o
      else if o ? type && (o ? description || !(elem "boxmaker" here)) then
        [ ]
      else
        [ (dotted here) ]
    ) (attrNames options);
in
{
  inherit mkIf mkOverride types;
  mkMerge = contents: {
    _type = "merge";
    inherit contents;
  };
  mkDefault = mkOverride 1000;
  mkForce = mkOverride 50;
  mkOption = o: { _type = "option"; } // o;
  mkEnableOption = what: {
    _type = "option";
    type = types.bool;
    default = false;
    description = "Whether to enable ${what}.";
  };
  literalExpression = text: {
    _type = "literalExpression";
    inherit text;
  };

  evalModules =
    { modules, specialArgs }:
    let
      arguments = {
        inherit lib config;
      }
      // specialArgs;
      load =
        m:
        let
          module = if builtins.isPath m || isString m then import m else m;
          content = if builtins.isFunction module then module arguments else module;
          # without either of the two, everything but the imports is config
          whole =
            if content ? options || content ? config then
              content
            else
              {
                imports = content.imports or [ ];
                config = removeAttrs content [ "imports" ];
              };
          unknown = filter (
            n:
            !(elem n [
              "options"
              "config"
              "imports"
            ])
          ) (attrNames whole);
        in
        if unknown != [ ] then
          throw "a module has options or config, and ${head unknown} beside it"
        else
          concatMap load (whole.imports or [ ]) ++ [ whole ];
      loaded = concatMap load modules;
      options = foldl' mergeOptions { } (map (m: m.options or { }) loaded);
      bare = undescribed [ ] options;
      config =
        if bare != [ ] then
          throw "options without a type or a description: ${concatStringsSep ", " bare}"
        else
          evaluate [ ] options (map (m: m.config or { }) loaded) null;
    in
    {
      inherit options config;
    };
}

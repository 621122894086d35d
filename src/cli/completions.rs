//! Completions for shells: from the definition of the command line, and the sessions that there are.

use clap::{Arg, Command, CommandFactory as _};
use clap_complete::Shell;

use super::args::Cli;
use super::care::TITLE_COLUMNS;
use super::text;
use crate::proto::SessionInfo;

/// What the definition calls a session.
const SESSION: &str = "SESSION";
/// Where the script for zsh has one.
const ZSH_PLACES: [&str; 2] = ["session -- Which session:_default'", ":SESSION:_default'"];

/// The script for a shell. `bxctl sessions --complete` gives it the sessions, when it is asked.
#[must_use]
pub fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "bxctl", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => script + &bash(),
        Shell::Zsh => zsh(script),
        Shell::Fish => script + &fish(),
        _ => script,
    }
}

/// What stands for each session on a command line: its name, where that is one word and no other session has it, else
/// its id; and what the session is.
#[must_use]
pub fn choices(sessions: &[SessionInfo]) -> Vec<String> {
    let plain =
        |name: &str| name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c)) && !name.starts_with('-');
    let choice = |info: &SessionInfo| {
        let name = info.name.as_deref().filter(|name| {
            plain(name) && sessions.iter().filter(|other| other.name.as_deref() == Some(name)).count() == 1
        });
        let title = text::line(info.name_or_title().unwrap_or_default());
        match name {
            Some(name) => format!("{name}\t{}", info.id),
            None => format!("{}\t{}", info.id, text::cut(&title, TITLE_COLUMNS)),
        }
    };
    sessions.iter().map(choice).collect()
}

fn is_session(arg: &Arg) -> bool {
    let names = arg.get_value_names().unwrap_or_default();
    names.iter().any(|name| name.as_str() == SESSION)
        || (arg.is_positional() && arg.get_id() == SESSION.to_lowercase().as_str())
}

/// The commands with an argument for which this holds.
fn commands(holds: impl Fn(&Arg) -> bool) -> Vec<String> {
    let all = Cli::command();
    let with = all.get_subcommands().filter(|command: &&Command| command.get_arguments().any(&holds));
    with.map(|command| command.get_name().to_owned()).collect()
}

/// The options with a value, as they are written.
fn with_values() -> Vec<String> {
    let mut all = Cli::command();
    all.build();
    let of = |command: &Command| -> Vec<String> {
        let valued = command.get_opts().filter(|arg| arg.get_num_args().is_some_and(|n| n.min_values() > 0));
        valued
            .flat_map(|arg| {
                [arg.get_long().map(|l| format!("--{l}")), arg.get_short().map(|s| format!("-{s}"))]
            })
            .flatten()
            .collect()
    };
    let mut options: Vec<String> = all.get_subcommands().flat_map(of).collect();
    options.sort();
    options.dedup();
    options
}

fn bash() -> String {
    let positional = commands(|arg| arg.is_positional() && is_session(arg)).join("|");
    let valued = with_values().join("|");
    format!(
        r#"
_bxctl_sessions() {{
    local id title
    while IFS=$'\t' read -r id title; do printf '%s\n' "$id"; done < <(bxctl sessions --complete 2>/dev/null)
}}

# as above, with the sessions that there are
_bxctl_all() {{
    _bxctl "$@"
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} at
    [[ $cur != -* ]] || return 0
    if [[ $prev != --session ]]; then
        case ${{COMP_WORDS[1]}} in {positional}) ;; *) return 0 ;; esac
        for ((at = 2; at < COMP_CWORD; at++)); do
            case ${{COMP_WORDS[at]}} in
                {valued}) ((++at < COMP_CWORD)) || return 0 ;;
                -*) ;;
                *) return 0 ;;
            esac
        done
    fi
    mapfile -t COMPREPLY < <(compgen -W "$(_bxctl_sessions)" -- "$cur")
}}
complete -F _bxctl_all -o bashdefault -o default bxctl
"#
    )
}

fn zsh(script: String) -> String {
    let function = "\
_bxctl_sessions() {
    local -a sessions
    local id title
    while IFS=$'\\t' read -r id title; do
        sessions+=(\"$id:$title\")
    done < <(bxctl sessions --complete 2>/dev/null)
    _describe -V session sessions
}

";
    let script = ZSH_PLACES
        .iter()
        .fold(script, |script, place| script.replace(place, &place.replace("_default", "_bxctl_sessions")));
    match script.split_once("_bxctl() {") {
        Some((head, rest)) => format!("{head}{function}_bxctl() {{{rest}"),
        None => script,
    }
}

fn fish() -> String {
    let mut lines = vec![
        String::new(),
        "function __bxctl_sessions".to_owned(),
        "    bxctl sessions --complete 2>/dev/null".to_owned(),
        "end".to_owned(),
        "function __bxctl_no_session_yet".to_owned(),
        "    test (count (commandline -opc | string match -v -- '-*')) -eq 2".to_owned(),
        "end".to_owned(),
    ];
    for command in commands(|arg| arg.is_positional() && is_session(arg)) {
        lines.push(format!(
            "complete -c bxctl -n \"__fish_bxctl_using_subcommand {command}; and __bxctl_no_session_yet\" -f -k -a \
             \"(__bxctl_sessions)\""
        ));
    }
    for command in commands(|arg| !arg.is_positional() && is_session(arg)) {
        lines.push(format!(
            "complete -c bxctl -n \"__fish_bxctl_using_subcommand {command}\" -l session -r -f -k -a \
             \"(__bxctl_sessions)\""
        ));
    }
    lines.push(String::new());
    lines.join("\n")
}

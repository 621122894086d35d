//! The command line of `bxctl`, from which completions and man pages are generated too.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Talk with the agent on this box, and look after its conversations.
///
/// Without a command, on a terminal: the same as `bxctl chat`.
#[derive(Debug, Parser)]
#[command(name = "bxctl", version, after_help = AFTER_HELP)]
pub struct Cli {
    /// The daemon's socket; else /run/boxmaker/loopd.sock, or the one in your own boxmaker home
    #[arg(long, global = true, value_name = "PATH", env = "BXCTL_SOCKET", hide_env_values = true)]
    pub socket: Option<PathBuf>,

    /// What to do
    #[command(subcommand)]
    pub command: Option<Command>,
}

const AFTER_HELP: &str = "\
A SESSION is an id, the beginning of one, or a name; where it can be left out, the latest is meant.
Exit status: 0 done, 1 failed, 2 wrong usage, 3 no daemon, 4 refused or damaged, 130 cancelled.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Have a conversation in the terminal
    ///
    /// Goes on with the latest session, or begins one. Enter sends; Alt-Enter, or a backslash at the end of
    /// a line, begins a new line. Ctrl-C cancels the running turn, twice quits; Ctrl-D leaves, and a running
    /// turn goes on without you. `/help` lists the commands. If the input is no terminal, each line is a turn.
    Chat(Chat),
    /// Send one message and print the answer
    ///
    /// The answer goes to the standard output, everything else to the standard error. Without TEXT the message
    /// is the whole standard input, less one newline at its end.
    Send(Send),
    /// List the sessions, newest first
    Sessions(Sessions),
    /// Print a session's conversation
    Show(Show),
    /// Find what was said, in all sessions
    ///
    /// Prints each message of yours, of the model, or of a tool that has all the words, with its session and turn.
    /// Exit status 1 if there is none.
    Search(Search),
    /// Print what each turn cost, in tokens and seconds
    Usage(Usage),
    /// Watch a session's running turn, and those that follow
    ///
    /// Ctrl-C ends the watching and cancels nothing.
    Attach(Attach),
    /// Stop the running or waiting turn of a session
    Cancel(Which),
    /// Allow or deny a tool call that waits for it
    ///
    /// `bxctl sessions` shows which call of which session waits, and `bxctl attach` what it would do.
    Approve(Approve),
    /// Ask again where the newest turn has no whole answer, without a new message
    ///
    /// After a turn that failed, was cancelled, met a limit, or was interrupted by the end of the daemon.
    Retry(Retry),
    /// Go on in a new epoch, from a summary and with today's configuration
    ///
    /// Makes room in a full context, and takes up a changed system prompt, tools, settings or model. The last turns
    /// stay as they are, the earlier ones are summarised by the model; all of them stay in the log. Ctrl-C stops
    /// it, and the session is then as it was.
    Rebase(Rebase),
    /// Begin a new session from the first turns of another
    ///
    /// The other one stays as it is. The model need not read the turns again: they are in its cache. Prints
    /// the new session's id.
    Fork(Fork),
    /// Give a session a name
    Rename(Rename),
    /// Really delete a session's files
    Delete(Delete),
    /// Write a session as Markdown, JSON, or one HTML page
    Export(Export),
    /// Show how the daemon, the slot and the model server are
    Status(Json),
    /// Print every reason why a conversation might not survive here, or be evaluated twice, with its remedy
    ///
    /// The daemon looks at itself, its disk and the model server; if no turn runs and the slot is empty, it tries the
    /// slot out. Exit status 0 if there is no such reason, else 1.
    Doctor(Json),
    /// Print counters in the text format of Prometheus
    Metrics,
    /// Speak the Agent Client Protocol on the standard input and output, for editors
    ///
    /// An editor starts it by itself: name `bxctl acp` as the command of an agent in its settings. The folder and
    /// the MCP servers that the editor names are not used: the box has tools of its own.
    Acp,
    /// Print completions for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a folder
    #[command(hide = true)]
    Man {
        /// The folder
        folder: PathBuf,
    },
}

/// Options of `chat`.
#[derive(Debug, Default, Args)]
pub struct Chat {
    /// Begin a new session, with this name if given
    #[arg(long, value_name = "NAME", num_args = 0..=1, group = "which")]
    pub new: Option<Option<String>>,
    /// Go on with this session
    #[arg(long, value_name = "SESSION", group = "which")]
    pub session: Option<String>,
    /// Go on with the latest session; an error if there is none
    #[arg(long, group = "which")]
    pub last: bool,
}

/// Options of `send`.
#[derive(Debug, Args)]
pub struct Send {
    /// Send to this session
    #[arg(long, value_name = "SESSION", group = "which")]
    pub session: Option<String>,
    /// Begin a new session
    #[arg(long, group = "which")]
    pub new: bool,
    /// Send to the latest session; an error if there is none
    #[arg(long, group = "which")]
    pub last: bool,
    /// Print the turn's events, one JSON object a line, the last being turn_end
    #[arg(long)]
    pub json: bool,
    /// The message; several words are joined by spaces
    pub text: Vec<String>,
}

/// Options of commands that only know `--json`.
#[derive(Debug, Args)]
pub struct Json {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `sessions`.
#[derive(Debug, Args)]
pub struct Sessions {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print what a shell completes a session with, and what it is
    #[arg(long, hide = true, conflicts_with = "json")]
    pub complete: bool,
}

/// A session that may be left out.
#[derive(Debug, Args)]
pub struct Which {
    /// Which session
    pub session: Option<String>,
}

/// Options of `attach`.
#[derive(Debug, Args)]
pub struct Attach {
    /// Which session
    pub session: Option<String>,
    /// Print the events, one JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// Options of `show`.
#[derive(Debug, Args)]
pub struct Show {
    /// Which session
    pub session: Option<String>,
    /// Print the records as a JSON array
    #[arg(long)]
    pub json: bool,
    /// With the ids of the tokens
    #[arg(long)]
    pub ids: bool,
}

/// Options of `search`.
#[derive(Debug, Args)]
pub struct Search {
    /// What to look for; upper and lower case are the same
    #[arg(required = true, value_name = "WORD")]
    pub words: Vec<String>,
    /// In this session only
    #[arg(long, value_name = "SESSION")]
    pub session: Option<String>,
    /// The most passages to print
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub most: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `fork`.
#[derive(Debug, Args)]
pub struct Fork {
    /// Which session
    pub session: Option<String>,
    /// The last turn to take over; else the newest that has ended
    #[arg(long, value_name = "TURN")]
    pub turn: Option<u64>,
    /// The new session's name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Print the new session as JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `usage`.
#[derive(Debug, Args)]
pub struct Usage {
    /// Which session
    pub session: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `retry`.
#[derive(Debug, Args)]
pub struct Retry {
    /// Which session
    pub session: Option<String>,
    /// Print the turn's events, one JSON object a line, the last being turn_end
    #[arg(long)]
    pub json: bool,
}

/// Options of `rebase`.
#[derive(Debug, Args)]
pub struct Rebase {
    /// Which session
    #[arg(conflicts_with = "named")]
    pub session: Option<String>,
    /// The same as SESSION
    #[arg(long = "session", id = "named", value_name = "SESSION")]
    pub named: Option<String>,
    /// Print the events, one JSON object a line, the last being rebased
    #[arg(long)]
    pub json: bool,
}

/// Options of `approve`.
#[derive(Debug, Args)]
pub struct Approve {
    /// Which session
    pub session: String,
    /// The number of the call
    pub call: u64,
    /// Whether it may run
    #[arg(value_enum)]
    pub answer: YesNo,
}

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum YesNo {
    /// It may run
    Yes,
    /// It may not
    No,
}

/// Options of `rename`.
#[derive(Debug, Args)]
pub struct Rename {
    /// Which session
    pub session: String,
    /// Its new name
    pub name: String,
}

/// Options of `delete`.
#[derive(Debug, Args)]
pub struct Delete {
    /// Which session
    pub session: String,
    /// Don't ask
    #[arg(long, short)]
    pub yes: bool,
}

/// Options of `export`.
#[derive(Debug, Args)]
pub struct Export {
    /// Which session
    pub session: Option<String>,
    /// In which form
    #[arg(long, value_enum, default_value_t = Format::Md)]
    pub format: Format,
    /// The same as --format json
    #[arg(long, conflicts_with_all = ["format", "html"])]
    pub json: bool,
    /// The same as --format html
    #[arg(long, conflicts_with = "format")]
    pub html: bool,
    /// Write to this file, readable only by you; it must not exist yet
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Forms of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Markdown, for people
    Md,
    /// JSON: the session and every record, token ids as numbers
    Json,
    /// One HTML page, with a chart of the tokens; it needs no other file
    Html,
}

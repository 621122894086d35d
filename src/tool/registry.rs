//! The registry: the two tools that the model sees, and what stands behind them.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use futures_util::future::join_all;
use serde_json::{Map, Value};

use super::arguments::{self, inner_call, kind};
use super::find::{Entry, Index};
use super::name::{CALL_TOOL, FIND_TOOL, NAME_BYTES, usable};
use super::schema::Checker;
use super::{McpServer, Policy, Run, Tool, ToolDescription, ToolReply};

/// The two tools as the model is shown them. It is part of the prompt's head: any change of a byte begins a
/// new epoch of every session.
const SHOWN: &str = concat!(
    r#"[{"type":"function","function":{"name":"find_tool","description":"Search the installed tools by words; "#,
    r#"returns their names and arguments.","parameters":{"type":"object","properties":"#,
    r#"{"query":{"type":"string"}},"required":["query"]}}},"#,
    r#"{"type":"function","function":{"name":"call_tool","description":"Run a tool that find_tool returned.","#,
    r#""parameters":{"type":"object","properties":{"name":{"type":"string"},"arguments":{"type":"object"}},"#,
    r#""required":["name","arguments"]}}}]"#
);

/// How many bytes of a schema an error shows at most.
const SCHEMA_IN_ERROR_BYTES: usize = 1500;
/// How many servers that are missing `find_tool` tells of, and with how many characters each.
const PROBLEMS_TOLD: usize = 4;
const PROBLEM_CHARS: usize = 300;

/// A tool and whether it may be run.
pub struct Installed {
    /// The tool.
    pub tool: Rc<dyn Tool>,
    /// Whether it may be run.
    pub policy: Policy,
}

/// Why a tool cannot be installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistryError {
    /// Its name is empty, too long, one of the two shown tools', or has characters that a name may not have.
    Name(String),
    /// Two tools have this name.
    Duplicate(String),
    /// Its schema is none: the tool, and why.
    Schema(String, String),
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(
                f,
                "the tool name {name:?} cannot be used; allowed are 1 to {NAME_BYTES} of a-z A-Z 0-9 _ - . / \
                 and neither {FIND_TOOL} nor {CALL_TOOL}"
            ),
            Self::Duplicate(name) => write!(f, "two tools are named {name:?}; rename one of them"),
            Self::Schema(name, why) => {
                write!(f, "the schema of the tool {name:?} is not a JSON Schema that can be used: {why}")
            }
        }
    }
}

impl std::error::Error for RegistryError {}

/// All installed tools: those that are fixed, and those that servers offer now.
pub struct Registry {
    fixed: BTreeMap<String, Rc<Callable>>,
    servers: Vec<Rc<McpServer>>,
    now: RefCell<Rc<Tools>>,
}

/// The tools as of some versions of the servers' lists.
struct Tools {
    versions: Vec<u64>,
    tools: BTreeMap<String, Rc<Callable>>,
    index: Index,
}

impl Tools {
    fn new(fixed: &BTreeMap<String, Rc<Callable>>, servers: &[Rc<McpServer>]) -> Self {
        let mut tools = fixed.clone();
        for installed in servers.iter().flat_map(McpServer::tools) {
            let name = installed.tool.name().to_owned();
            tools.entry(name).or_insert_with(|| Rc::new(Callable::new(installed)));
        }
        let shown = tools.iter().filter(|(_, callable)| callable.policy != Policy::Deny);
        let entries = shown.map(|(name, callable)| Entry {
            name: name.clone(),
            text: callable.text.clone(),
            schema: callable.schema.clone(),
        });
        let index = Index::new(entries.collect());
        Self { versions: versions(servers), tools, index }
    }
}

fn versions(servers: &[Rc<McpServer>]) -> Vec<u64> {
    servers.iter().map(|server| server.version()).collect()
}

struct Callable {
    tool: Rc<dyn Tool>,
    policy: Policy,
    text: String,
    schema: Value,
    checker: OnceCell<Checker>,
}

impl Callable {
    fn new(installed: Installed) -> Self {
        let Installed { tool, policy } = installed;
        let ToolDescription { text, schema } = tool.describe();
        Self { tool, policy, text, schema, checker: OnceCell::new() }
    }

    fn checker(&self) -> Result<&Checker, String> {
        if let Some(checker) = self.checker.get() {
            return Ok(checker);
        }
        let checker = Checker::new(&self.schema)?;
        Ok(self.checker.get_or_init(|| checker))
    }
}

/// What a call of the model comes to. Nothing has been run yet.
pub enum Prepared {
    /// It is answered already.
    Answer(ToolReply),
    /// A tool is to be run.
    Run(Run),
}

impl Registry {
    /// Installs tools, in any order.
    ///
    /// # Errors
    /// The first one that cannot be installed, and why.
    pub fn new(installed: Vec<Installed>) -> Result<Self, RegistryError> {
        Self::with_servers(installed, Vec::new())
    }

    /// Installs tools and servers, in any order. No server is started.
    ///
    /// # Errors
    /// The first tool that cannot be installed, and why.
    pub fn with_servers(
        installed: Vec<Installed>,
        servers: Vec<Rc<McpServer>>,
    ) -> Result<Self, RegistryError> {
        let mut fixed = BTreeMap::new();
        for installed in installed {
            let name = installed.tool.name().to_owned();
            if !usable(&name) {
                return Err(RegistryError::Name(name));
            }
            let callable = Callable::new(installed);
            if !callable.tool.schema_is_proven() {
                callable.checker().map_err(|why| RegistryError::Schema(name.clone(), why))?;
            }
            if fixed.insert(name.clone(), Rc::new(callable)).is_some() {
                return Err(RegistryError::Duplicate(name));
            }
        }
        let now = RefCell::new(Rc::new(Tools::new(&fixed, &servers)));
        Ok(Self { fixed, servers, now })
    }

    /// Brings the lists of those servers up to date that a call may need: starts them, if need be, each within its own
    /// limit. Dropping the future ends a start that is under way.
    pub async fn refresh(&self, name: &str, arguments: &str) {
        join_all(self.needed(name, arguments).into_iter().map(|server| server.refresh())).await;
    }

    /// Whether all that a call may need is there, so that [`Registry::refresh`] has nothing to do.
    #[must_use]
    pub fn is_current(&self, name: &str, arguments: &str) -> bool {
        self.needed(name, arguments).into_iter().all(|server| server.is_current())
    }

    /// The servers whose lists a call may need.
    fn needed(&self, name: &str, arguments: &str) -> Vec<&Rc<McpServer>> {
        if self.servers.is_empty() {
            return Vec::new();
        }
        let wanted = match name {
            CALL_TOOL => inner_call(arguments).map(|call| call.name).unwrap_or_default(),
            name => name.to_owned(),
        };
        if self.fixed.contains_key(&wanted) {
            return Vec::new();
        }
        let named = wanted.split_once('/').map(|(server, _)| server);
        let own = self.servers.iter().filter(|server| Some(server.name()) == named);
        let mut needed: Vec<_> = own.collect();
        if needed.is_empty() {
            needed.extend(&self.servers);
        }
        needed
    }

    /// Ends all servers in order.
    pub async fn close(&self) {
        join_all(self.servers.iter().map(|server| server.close())).await;
    }

    fn now(&self) -> Rc<Tools> {
        if self.now.borrow().versions != versions(&self.servers) {
            self.now.replace(Rc::new(Tools::new(&self.fixed, &self.servers)));
        }
        Rc::clone(&self.now.borrow())
    }

    /// Servers whose tools cannot be called now, and why; a line each.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        self.servers.iter().filter_map(|server| server.problem()).collect()
    }

    /// The two tools that the model sees, a JSON array; the same bytes whatever is installed.
    #[must_use]
    pub fn shown() -> &'static str {
        SHOWN
    }

    /// The installed tools' names and policies, by name.
    #[must_use]
    pub fn list(&self) -> Vec<(String, Policy)> {
        self.now().tools.iter().map(|(name, callable)| (name.clone(), callable.policy)).collect()
    }

    /// Whether this is the name of an installed tool, or of one of the two that the model sees.
    #[must_use]
    pub fn knows(&self, name: &str) -> bool {
        name == FIND_TOOL || name == CALL_TOOL || self.now().tools.contains_key(name)
    }

    /// A tool, by name.
    #[must_use]
    pub fn tool(&self, name: &str) -> Option<Rc<dyn Tool>> {
        self.now().tools.get(name).map(|callable| Rc::clone(&callable.tool))
    }

    /// Reads a call, `arguments` as the model wrote them, and checks all that can be checked before it runs. A model
    /// that calls an installed tool by its own name, without `call_tool`, is understood.
    #[must_use]
    pub fn prepare(&self, name: &str, arguments: &str) -> Prepared {
        // the schema library sees what a model and a stranger's schema made up: its defects are not ours
        catch_unwind(AssertUnwindSafe(|| self.prepared(name, arguments)))
            .unwrap_or_else(|_| Err(format!("the arguments of {name:?} could not be checked")))
            .unwrap_or_else(|why| Prepared::Answer(ToolReply::error(format!("Nothing was run: {why}"))))
    }

    fn prepared(&self, name: &str, arguments: &str) -> Result<Prepared, String> {
        match name {
            FIND_TOOL => self.find(arguments).map(|text| Prepared::Answer(ToolReply::ok(text))),
            CALL_TOOL => {
                let call = inner_call(arguments)?;
                self.checked(&call.name, call.arguments, &call.object).map(Prepared::Run)
            }
            name if self.now().tools.contains_key(name) => {
                let object =
                    arguments::object(arguments).map_err(|why| format!("the arguments of {name} {why}"))?;
                self.checked(name, arguments.to_owned(), &object).map(Prepared::Run)
            }
            name => Err(self.unknown(name)),
        }
    }

    fn find(&self, arguments: &str) -> Result<String, String> {
        let object =
            arguments::object(arguments).map_err(|why| format!("the arguments of find_tool {why}"))?;
        if let Some(other) = object.keys().find(|key| *key != "query") {
            return Err(format!("find_tool has no {other:?}; it takes \"query\": words to look for"));
        }
        let now = self.now();
        let mut answer = match object.get("query") {
            None | Some(Value::Null) => now.index.answer(""),
            Some(Value::String(query)) => now.index.answer(query),
            Some(other) => {
                return Err(format!("\"query\" is {}; words in a string are allowed", kind(other)));
            }
        };
        for problem in self.problems().iter().take(PROBLEMS_TOLD) {
            let short: String = problem.chars().take(PROBLEM_CHARS).collect();
            answer.push_str(&format!("\nMissing now: {short}"));
        }
        Ok(answer)
    }

    fn checked(&self, name: &str, text: String, object: &Map<String, Value>) -> Result<Run, String> {
        let callable = self.now().tools.get(name).cloned().ok_or_else(|| self.unknown(name))?;
        if callable.policy != Policy::Deny {
            callable.checker()?.check(object, text.len()).map_err(|errors| {
                let schema = callable.schema.to_string();
                let allowed = if schema.len() <= SCHEMA_IN_ERROR_BYTES {
                    format!("\nThe arguments of {name}: {schema}")
                } else {
                    String::new()
                };
                format!("the arguments do not fit {name}.\n{errors}{allowed}")
            })?;
        }
        Ok(Run::new(Rc::clone(&callable.tool), callable.policy, text))
    }

    fn unknown(&self, name: &str) -> String {
        let short: String = name.chars().take(NAME_BYTES).collect();
        let server = self.servers.iter().find(|server| name.split('/').next() == Some(server.name()));
        if let Some(problem) = server.and_then(|server| server.problem()) {
            let why: String = problem.chars().take(2 * PROBLEM_CHARS).collect();
            return format!("{short:?} cannot be called now: {why}");
        }
        format!("there is no tool {short:?}. {} Use find_tool to search.", self.now().index.suggest(name))
    }
}

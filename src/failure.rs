//! How the program fails: one error type, one paragraph for the reader, one exit code.

use ironmill_data::Class;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// The result of everything in the binary that can fail.
pub type Result<T> = std::result::Result<T, Failure>;

/// Why the program ends without having done its work.
#[derive(Debug)]
pub struct Failure {
    code: Code,
    /// What is wrong and what to do, without a full stop.
    message: String,
    place: Option<Box<Place>>,
}

/// A stretch of a configuration file that the message is about.
#[derive(Debug)]
pub struct Place {
    /// The file and its text.
    pub source: miette::NamedSource<String>,
    /// The bytes at fault.
    pub span: std::ops::Range<usize>,
    /// The line of the first of them, counted from 1.
    pub line: usize,
    /// What to say beside them.
    pub label: String,
}

/// The exit codes; part of the interface, see the manual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    /// Something else.
    Failed = 1,
    /// A wrong command line.
    Usage = 2,
    /// The data is damaged or of the wrong form.
    BadData = 65,
    /// An input is missing or empty.
    NoInput = 66,
    /// The device asked for is not there.
    NoDevice = 69,
    /// A mistake in this program.
    OurBug = 70,
    /// An output cannot be created.
    CannotWrite = 73,
    /// Reading or writing failed.
    Io = 74,
    /// A signal stopped the work, which can be resumed.
    Stopped = 75,
    /// The configuration is wrong.
    BadConfig = 78,
    /// The loss or a gradient is no number any more.
    Diverged = 80,
    /// The memory does not suffice.
    OutOfMemory = 81,
}

impl Code {
    /// The code as a word, for programs that read JSON.
    pub fn name(self) -> &'static str {
        match self {
            Code::Failed => "failed",
            Code::Usage => "usage",
            Code::BadData => "bad_data",
            Code::NoInput => "no_input",
            Code::NoDevice => "no_device",
            Code::OurBug => "our_bug",
            Code::CannotWrite => "cannot_write",
            Code::Io => "io",
            Code::Stopped => "stopped",
            Code::BadConfig => "bad_config",
            Code::Diverged => "diverged",
            Code::OutOfMemory => "out_of_memory",
        }
    }
}

impl Failure {
    /// A failure with its exit code.
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into(), place: None }
    }

    /// The same failure, pointing at a place in a file.
    pub fn at(mut self, place: Place) -> Failure {
        self.place = Some(Box::new(place));
        self
    }

    /// A file that cannot be read.
    pub fn read(path: &Path, error: &io::Error) -> Failure {
        let shown = path.display();
        match error.kind() {
            io::ErrorKind::NotFound => {
                Failure::new(Code::NoInput, format!("cannot find {shown}: check the name"))
            }
            io::ErrorKind::IsADirectory => {
                Failure::new(Code::NoInput, format!("{shown} is a folder: give the name of a file"))
            }
            io::ErrorKind::NotADirectory => {
                let advice = "a part of its path is a file and no folder; check the name";
                Failure::new(Code::NoInput, format!("cannot find {shown}: {advice}"))
            }
            io::ErrorKind::InvalidData => {
                let advice = "check that it is the file you mean, or convert it";
                Failure::new(Code::BadData, format!("{shown} is not UTF-8 text: {advice}"))
            }
            _ => Failure::new(
                Code::Io,
                format!("cannot read {shown} ({error}): check the permissions and the disk"),
            ),
        }
    }

    /// A file or folder that cannot be written.
    pub fn write(path: &Path, error: &io::Error) -> Failure {
        let advice = match error.kind() {
            io::ErrorKind::IsADirectory => "it is a folder; give the name of a file",
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
                "a file stands where a folder is needed; choose another name"
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "free some space, or choose another disk"
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                "choose a folder that you may write to, or change its permissions"
            }
            _ => "check that the folder exists, is writable and has space",
        };
        Failure::new(Code::CannotWrite, format!("cannot write {} ({error}): {advice}", path.display()))
    }

    /// An end without a message: nobody reads the output any more, so whoever did has all that was wanted.
    pub fn unread() -> Failure {
        Failure::new(Code::Io, "")
    }

    /// Whether the program ends because nobody reads its output.
    pub fn is_unread(&self) -> bool {
        self.message.is_empty()
    }

    /// The exit code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The place in a file that it is about, if it is about one.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_deref()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{}:{}: ", place.source.name(), place.line)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl miette::Diagnostic for Failure {
    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        self.place.as_ref().map(|place| &place.source as &dyn miette::SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = miette::LabeledSpan> + '_>> {
        let place = self.place.as_ref()?;
        let label = miette::LabeledSpan::new_primary_with_span(Some(place.label.clone()), place.span.clone());
        Some(Box::new(std::iter::once(label)))
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> ExitCode {
        ExitCode::from(code as u8)
    }
}

impl From<ironmill_data::Error> for Failure {
    fn from(error: ironmill_data::Error) -> Failure {
        let code = match error.class() {
            Class::BadData | Class::Mismatch => Code::BadData,
            Class::NoInput => Code::NoInput,
            Class::CannotWrite => Code::CannotWrite,
            Class::Io => Code::Io,
            Class::Stopped => Code::Stopped,
            Class::BadSetting => Code::BadConfig,
            _ => Code::Failed,
        };
        match error {
            // These are the library's words for any file; the kind of the problem allows better advice.
            ironmill_data::Error::Read { ref path, ref source } if is_wrong_type(source) => {
                Failure::read(path, source)
            }
            ironmill_data::Error::Write { ref path, ref source } => Failure::write(path, source),
            error => Failure::new(code, error.to_string()),
        }
    }
}

/// Whether there is no room left to write.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether a file was asked for where a folder is, or the other way round.
fn is_wrong_type(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory)
}

impl From<ironmill_model::Error> for Failure {
    fn from(error: ironmill_model::Error) -> Failure {
        use ironmill_model::Error;
        let code = match error {
            Error::Data(error) => return error.into(),
            Error::Graph(error) => return error.into(),
            Error::Model { .. } | Error::Setting { .. } => Code::BadConfig,
            Error::NotAModel { ref path, .. } if !path.exists() => Code::NoInput,
            Error::Damaged { .. } | Error::NotAModel { .. } | Error::OtherShape { .. } | Error::Prompt(_) => {
                Code::BadData
            }
            Error::Refused { .. } => Code::Diverged,
            Error::NoSpace { .. } => Code::CannotWrite,
            Error::Stopped => Code::Stopped,
            Error::Io { ref source, .. } if source.kind() == io::ErrorKind::NotFound => Code::NoInput,
            Error::Io { ref path, ref source } if is_full(source) => return Failure::write(path, source),
            Error::Io { .. } => Code::Io,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<ironmill_graph::Error> for Failure {
    fn from(error: ironmill_graph::Error) -> Failure {
        match error {
            ironmill_graph::Error::Compute(error) => error.into(),
            // Programs are built by our own models, so what cannot be built is our mistake.
            error => Failure::new(Code::OurBug, error.to_string()),
        }
    }
}

impl From<ironmill_compute::Error> for Failure {
    fn from(error: ironmill_compute::Error) -> Failure {
        use ironmill_compute::Error;
        let code = match error {
            Error::OutOfMemory { .. } => Code::OutOfMemory,
            Error::Unsupported { .. }
            | Error::NoInt8 { .. }
            | Error::LibraryMissing { .. }
            | Error::Cuda { .. } => Code::NoDevice,
            Error::IndexOutOfRange { .. } => Code::BadData,
            Error::Shape { .. } => Code::BadConfig,
            Error::Threads(_) => Code::Failed,
            Error::Binding { .. } | Error::KernelCompile { .. } => Code::OurBug,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<ironmill_text::Error> for Failure {
    fn from(error: ironmill_text::Error) -> Failure {
        if let ironmill_text::Error::Write { path, source } = &error {
            return Failure::write(path, source);
        }
        Failure::new(text_code(&error), error.to_string())
    }
}

fn text_code(error: &ironmill_text::Error) -> Code {
    use ironmill_text::Error;
    match error {
        Error::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => Code::NoInput,
        Error::Read { source, .. } if is_wrong_type(source) => Code::NoInput,
        // A file that is not even text is a wrong file rather than a broken disk.
        Error::Read { source, .. } if source.kind() == io::ErrorKind::InvalidData => Code::BadData,
        Error::Read { .. } => Code::Io,
        Error::Write { .. } => Code::CannotWrite,
        Error::InFile { source, .. } => text_code(source),
        Error::EmptyCorpus(_) => Code::NoInput,
        Error::UnknownPattern(_)
        | Error::BadPattern { .. }
        | Error::BadSpecial { .. }
        | Error::VocabularyTooSmall { .. }
        | Error::VocabularyTooLarge(_)
        | Error::CountsDiffer { .. } => Code::BadConfig,
        Error::CountOverflow(_) | Error::CorpusTooLarge { .. } => Code::Failed,
        Error::Scratch { .. } | Error::ScratchFull { .. } => Code::CannotWrite,
        Error::NoScratch { .. } | Error::PartitionTooLarge { .. } | Error::ArenaTooLarge { .. } => {
            Code::OutOfMemory
        }
        // What remains is about content: a tokenizer file, a text or an id that is not what it should be.
        _ => Code::BadData,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_inside_a_file_keeps_its_code() {
        let inner = Box::new(ironmill_text::Error::Format("no merges".into()));
        let error = ironmill_text::Error::InFile { path: "t.json".into(), source: inner };
        assert_eq!(Failure::from(error).code(), Code::BadData);
    }

    #[test]
    fn a_missing_file_is_missing_input_and_a_locked_one_is_not() {
        let code = |kind| Failure::read(Path::new("x"), &io::Error::from(kind)).code();
        assert_eq!(code(io::ErrorKind::NotFound), Code::NoInput);
        assert_eq!(code(io::ErrorKind::PermissionDenied), Code::Io);
        assert_eq!(code(io::ErrorKind::IsADirectory), Code::NoInput);
    }

    #[test]
    fn the_advice_on_an_output_fits_the_problem() {
        for (kind, advice) in [
            (io::ErrorKind::StorageFull, "free some space"),
            (io::ErrorKind::PermissionDenied, "may write to"),
            (io::ErrorKind::NotADirectory, "choose another name"),
            (io::ErrorKind::IsADirectory, "name of a file"),
            (io::ErrorKind::NotFound, "folder exists"),
        ] {
            let said = Failure::write(Path::new("x"), &io::Error::from(kind)).to_string();
            assert!(said.contains(advice), "{said}");
        }
    }
}

//! The models that are trained for a measurement.

use ironmill_model::{Architecture, ModelConfig};

/// A model and the batch that it is trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The kind of model.
    pub style: Architecture,
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads of a block.
    pub heads: usize,
    /// Channels.
    pub width: usize,
    /// Tokens of a sample.
    pub context: usize,
    /// Samples of a step.
    pub batch: usize,
    /// Token ids are below this.
    pub vocab: usize,
}

impl Sizes {
    /// The character model that nanoGPT trains on a processor.
    pub const CPU: Sizes = Sizes {
        style: Architecture::Gpt2,
        layers: 4,
        heads: 4,
        width: 128,
        context: 64,
        batch: 12,
        vocab: 65,
    };
    /// The character model that nanoGPT trains on a card, with a batch for a processor.
    pub const BABY: Sizes =
        Sizes { layers: 6, heads: 6, width: 384, context: 256, batch: 16, vocab: 65, ..Sizes::CPU };
    /// GPT-2 of 124 million parameters, its vocabulary padded.
    pub const GPT2: Sizes =
        Sizes { layers: 12, heads: 12, width: 768, context: 256, batch: 4, vocab: 50304, ..Sizes::CPU };
    /// Just enough to see that everything runs.
    pub const TINY: Sizes =
        Sizes { layers: 2, heads: 2, width: 32, context: 16, batch: 4, vocab: 65, ..Sizes::CPU };

    /// The sizes of a name, or of layers, heads and width written `4x4x128`; behind `llama:`, those of a model in Llama's style.
    pub fn parse(text: &str) -> Result<Sizes, String> {
        if let Some(sizes) = text.strip_prefix("llama:") {
            return Ok(Sizes { style: Architecture::Llama, ..Sizes::parse(sizes)? });
        }
        match text {
            "cpu" => return Ok(Sizes::CPU),
            "baby" => return Ok(Sizes::BABY),
            "gpt2" => return Ok(Sizes::GPT2),
            _ => {}
        }
        let numbers: Option<Vec<usize>> = text.split('x').map(|number| number.parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[layers, heads, width]) => Ok(Sizes { layers, heads, width, ..Sizes::CPU }),
            _ => Err("use cpu, baby, gpt2, or layers, heads and width as in 4x4x128".into()),
        }
    }

    /// The model.
    pub fn config(&self) -> ModelConfig {
        let style = ModelConfig::new(self.style, self.layers, self.heads, self.width);
        ModelConfig { vocab_size: self.vocab, context: self.context, ..style }
    }

    /// Tokens of a step.
    pub fn tokens(&self) -> usize {
        self.batch * self.context
    }

    /// How many parameters an update of such a model is measured on: all, unless their table is all that fits.
    pub fn update_elements(&self) -> usize {
        const MOST: usize = 40_000_000;
        (12 * self.layers * self.width * self.width + self.vocab * self.width).min(MOST)
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let Sizes { style, layers, heads, width, context, batch, vocab } = self;
        let style = style.name();
        format!(
            "{style}, {layers} layers, {heads} heads, {width} wide; batch {batch} of {context} tokens, vocabulary {vocab}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_known_by_name_or_by_their_sizes() {
        assert_eq!(Sizes::parse("gpt2"), Ok(Sizes::GPT2));
        assert_eq!(Sizes::parse("2x3x48"), Ok(Sizes { layers: 2, heads: 3, width: 48, ..Sizes::CPU }));
        let llama = Sizes { style: Architecture::Llama, ..Sizes::GPT2 };
        assert_eq!(Sizes::parse("llama:gpt2"), Ok(llama));
        for wrong in ["", "llama:", "big", "2x3", "2x3x4x5", "2x-3x4"] {
            assert!(Sizes::parse(wrong).is_err(), "{wrong}");
        }
    }
}

//! temporary
use std::path::PathBuf;
/// tmp
pub struct SlotFiles(PathBuf);
impl SlotFiles {
    /// tmp
    pub fn new(dir: PathBuf) -> Self {
        Self(dir)
    }
    /// tmp
    pub async fn read_ids(&self, name: &str) -> std::io::Result<Vec<u32>> {
        let d = std::fs::read(self.0.join(name))?;
        let u = |i: usize| d.get(i * 4..i * 4 + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
        let n = u(5).unwrap_or(0);
        Ok((0..n).filter_map(|i| u(6 + usize::try_from(i).unwrap_or(0))).collect())
    }
    /// tmp
    pub async fn remove(&self, name: &str) -> std::io::Result<()> {
        std::fs::remove_file(self.0.join(name))
    }
}

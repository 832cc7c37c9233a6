//! What an operator may change of a running Manager's providers: regions, limits of instance types,
//! tables of images (OVR).
//!
//! The whole is read or nothing, with every fault told by line, column and key (OVR-03).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::job::MediaVersion;
use crate::json::{JsonFault, Place, Placed, PlacedValue, read_json};

/// Providers that a file may name.
pub const PROVIDERS: [&str; 4] = ["aws", "oci", "cloud-hypervisor", "local"];
/// The one region of the provider `local`, which has none.
pub const LOCAL_REGION: &str = "local";
/// Largest file in bytes (OVR-06).
pub const OVERRIDES_MAX: usize = 1024 * 1024;
/// Faults told at once; more would bury the first.
const FAULTS_MAX: usize = 100;
/// Changes told at once.
const CHANGES_MAX: usize = 1_000;
/// Longest name or reference, in bytes.
const TEXT_MAX: usize = 512;

/// A table of one value for each level.
pub type Levels = BTreeMap<MediaVersion, String>;

/// Everything that an overrides file says, by provider (OVR-01).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Overrides {
    /// By name of the provider.
    pub providers: BTreeMap<String, ProviderOverrides>,
}

/// What it says of one provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProviderOverrides {
    /// The regions (for OCI availability domains) instead of those of the settings; absent: those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regions: Option<BTreeMap<String, RegionOverrides>>,
    /// Most nodes of an instance type at a time.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub instance_types: BTreeMap<String, u32>,
    /// Image id of the worker's machine, by region and level (OVR-04).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub worker_images: BTreeMap<String, Levels>,
    /// Version of the worker on that image.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub worker_versions: BTreeMap<String, Levels>,
    /// Image of the media runtime.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub media_versions: BTreeMap<String, Levels>,
}

/// What it says of one region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RegionOverrides {
    /// Subnets for workers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<String>,
    /// Security groups that every worker has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub base_groups: Vec<String>,
    /// Zones that may be used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<String>,
}

// === impl Overrides ===

impl Overrides {
    /// Reads a file's text.
    ///
    /// # Errors
    /// Every fault, with line, column and key; none was put in force.
    pub fn read(text: &str) -> Result<Self, Vec<JsonFault>> {
        let root = read_json(text)?;
        let mut faults = Faults::default();
        let read = faults.overrides(&root);
        match faults.found.is_empty() {
            true => Ok(read),
            false => {
                let mut found = faults.found;
                found.sort_by_key(|fault| fault.place);
                found.truncate(FAULTS_MAX);
                Err(found)
            }
        }
    }

    /// Image of the media runtime for a provider's region and a level; never that of another level
    /// (OVR-04). The outer absence means that the file has no table for the region.
    pub fn media_version(
        &self,
        provider: &str,
        region: &str,
        level: MediaVersion,
    ) -> Option<Option<&str>> {
        let table = self.providers.get(provider)?.media_versions.get(region)?;
        Some(table.get(&level).map(String::as_str))
    }

    /// The regions of a provider, where the file says them.
    pub fn regions(&self, provider: &str) -> Option<BTreeSet<&str>> {
        let regions = self.providers.get(provider)?.regions.as_ref()?;
        Some(regions.keys().map(String::as_str).collect())
    }

    /// What differs from `before`, one line a value: `KEY: OLD -> NEW` (OVR-02). It holds no secret.
    pub fn changes_from(&self, before: &Self) -> Vec<String> {
        let plain = |it: &Self| serde_json::to_value(it).unwrap_or_default();
        let mut changes = Vec::new();
        compare("", &plain(before), &plain(self), &mut changes);
        if changes.len() > CHANGES_MAX {
            let more = changes.len() - CHANGES_MAX;
            changes.truncate(CHANGES_MAX);
            changes.push(format!("and {more} more"));
        }
        changes
    }
}

fn compare(path: &str, before: &Value, after: &Value, changes: &mut Vec<String>) {
    if before == after {
        return;
    }
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        changes.push(format!("{path}: {before} -> {after}"));
        return;
    };
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for key in keys {
        let below = match path {
            "" => key.clone(),
            _ => format!("{path}.{key}"),
        };
        match (old.get(key), new.get(key)) {
            (Some(old), Some(new)) => compare(&below, old, new, changes),
            (Some(_), None) => changes.push(format!("{below}: removed")),
            (None, Some(new)) => changes.push(format!("{below}: added {new}")),
            (None, None) => {}
        }
    }
}

// === reading ===

#[derive(Default)]
struct Faults {
    found: Vec<JsonFault>,
}

type Entries<'a> = &'a [(Place, String, Placed)];

// === impl Faults ===

impl Faults {
    fn tell(&mut self, place: Place, path: &str, message: impl Into<String>) {
        self.found.push(JsonFault {
            place,
            path: path.to_owned(),
            message: message.into(),
        });
    }

    fn wanted(&mut self, wanted: &str, value: &Placed, path: &str) {
        let message = format!("expected {wanted}, found {}", value.found());
        self.tell(value.place, path, message);
    }

    fn unknown(&mut self, place: Place, path: &str, known: &[&str]) {
        self.tell(
            place,
            path,
            format!("unknown key, known are {}", known.join(", ")),
        );
    }

    fn map<'a>(&mut self, value: &'a Placed, path: &str) -> Entries<'a> {
        match &value.value {
            PlacedValue::Map(entries) => entries,
            _ => {
                self.wanted("an object", value, path);
                &[]
            }
        }
    }

    fn overrides(&mut self, root: &Placed) -> Overrides {
        let mut read = Overrides::default();
        for (place, key, value) in self.map(root, "") {
            if !PROVIDERS.contains(&key.as_str()) {
                self.unknown(*place, key, &PROVIDERS);
                continue;
            }
            let provider = self.provider(key, value);
            read.providers.insert(key.clone(), provider);
        }
        read
    }

    fn provider(&mut self, name: &str, value: &Placed) -> ProviderOverrides {
        let is_local = name == LOCAL_REGION;
        let known: &[&str] = match is_local {
            true => &["mediaVersions"],
            false => &[
                "regions",
                "instanceTypes",
                "workerImages",
                "workerVersions",
                "mediaVersions",
            ],
        };
        let mut read = ProviderOverrides::default();
        let mut tables = Vec::new();
        for (place, key, value) in self.map(value, name) {
            let path = format!("{name}.{key}");
            if !known.contains(&key.as_str()) {
                self.unknown(*place, &path, known);
                continue;
            }
            match key.as_str() {
                "regions" => read.regions = Some(self.regions(&path, value)),
                "instanceTypes" => read.instance_types = self.limits(&path, value),
                table => {
                    let levels = self.table(&path, value);
                    for (place, region, _) in &levels {
                        tables.push((*place, path.clone(), region.clone()));
                    }
                    let levels = levels
                        .into_iter()
                        .map(|(_, region, levels)| (region, levels));
                    match table {
                        "workerImages" => read.worker_images = levels.collect(),
                        "workerVersions" => read.worker_versions = levels.collect(),
                        _ => read.media_versions = levels.collect(),
                    }
                }
            }
        }
        for (place, path, region) in tables {
            let is_known = match &read.regions {
                _ if is_local => region == LOCAL_REGION,
                Some(regions) => regions.contains_key(&region),
                None => true,
            };
            if !is_known {
                let message = match is_local {
                    true => "the provider local has one region, local".to_owned(),
                    false => format!("it is not among the keys of {name}.regions"),
                };
                self.tell(place, &format!("{path}.{region}"), message);
            }
        }
        read
    }

    fn regions(&mut self, path: &str, value: &Placed) -> BTreeMap<String, RegionOverrides> {
        const KNOWN: [&str; 3] = ["subnets", "baseGroups", "zones"];
        let mut read = BTreeMap::new();
        for (place, region, value) in self.map(value, path) {
            let path = format!("{path}.{region}");
            self.name(*place, &path, region);
            let mut of_region = RegionOverrides::default();
            for (place, key, value) in self.map(value, &path) {
                let path = format!("{path}.{key}");
                match key.as_str() {
                    "subnets" => of_region.subnets = self.texts(&path, value),
                    "baseGroups" => of_region.base_groups = self.texts(&path, value),
                    "zones" => of_region.zones = self.texts(&path, value),
                    _ => self.unknown(*place, &path, &KNOWN),
                }
            }
            read.insert(region.clone(), of_region);
        }
        read
    }

    fn limits(&mut self, path: &str, value: &Placed) -> BTreeMap<String, u32> {
        let mut read = BTreeMap::new();
        for (place, name, value) in self.map(value, path) {
            let path = format!("{path}.{name}");
            self.name(*place, &path, name);
            let number = match &value.value {
                PlacedValue::Number(number) => number.parse::<u32>().ok(),
                _ => None,
            };
            match number {
                Some(number) => {
                    read.insert(name.clone(), number);
                }
                None => self.wanted("a whole number of nodes", value, &path),
            }
        }
        read
    }

    fn table(&mut self, path: &str, value: &Placed) -> Vec<(Place, String, Levels)> {
        const LEVELS: [(&str, MediaVersion); 4] = [
            ("RECOMMENDED", MediaVersion::Recommended),
            ("LATEST", MediaVersion::Latest),
            ("PREVIOUS_RECOMMENDED", MediaVersion::PreviousRecommended),
            ("LTS", MediaVersion::Lts),
        ];
        let mut read = Vec::new();
        for (place, region, value) in self.map(value, path) {
            let path = format!("{path}.{region}");
            self.name(*place, &path, region);
            let mut levels = Levels::new();
            for (place, key, value) in self.map(value, &path) {
                let path = format!("{path}.{key}");
                let level = LEVELS.iter().find(|(word, _)| *word == key.as_str());
                let Some((_, level)) = level else {
                    self.unknown(*place, &path, &LEVELS.map(|(word, _)| word));
                    continue;
                };
                if let Some(text) = self.text(&path, value) {
                    levels.insert(*level, text);
                }
            }
            read.push((*place, region.clone(), levels));
        }
        read
    }

    fn texts(&mut self, path: &str, value: &Placed) -> Vec<String> {
        let PlacedValue::List(items) = &value.value else {
            self.wanted("a list of texts", value, path);
            return Vec::new();
        };
        let mut read = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let path = format!("{path}[{index}]");
            if let Some(text) = self.text(&path, item) {
                if read.contains(&text) {
                    self.tell(
                        item.place,
                        &path,
                        format!("{text:?} stands in this list twice"),
                    );
                }
                read.push(text);
            }
        }
        read
    }

    fn text(&mut self, path: &str, value: &Placed) -> Option<String> {
        match &value.value {
            PlacedValue::Text(text) => {
                self.name(value.place, path, text);
                Some(text.clone())
            }
            _ => {
                self.wanted("a text", value, path);
                None
            }
        }
    }

    fn name(&mut self, place: Place, path: &str, text: &str) {
        let is_good = (1..=TEXT_MAX).contains(&text.len())
            && !text.chars().any(|c| c.is_control() || c.is_whitespace());
        if !is_good {
            let message = format!("must be 1 to {TEXT_MAX} bytes without spaces");
            self.tell(place, path, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{
  "aws": {
    "regions": {
      "eu-west-1": {"subnets": ["subnet-1"], "baseGroups": ["sg-1", "sg-2"], "zones": ["eu-west-1a"]},
      "us-east-1": {}
    },
    "instanceTypes": {"c5.4xlarge": 10},
    "workerImages": {"eu-west-1": {"RECOMMENDED": "ami-1", "LTS": "ami-0"}},
    "workerVersions": {"eu-west-1": {"RECOMMENDED": "1.2.3"}},
    "mediaVersions": {"eu-west-1": {"LATEST": "registry/media:9"}}
  },
  "local": {"mediaVersions": {"local": {"RECOMMENDED": "media:1"}}}
}"#;

    // spec: OVR-01, OVR-04
    #[test]
    fn a_file_says_regions_limits_and_tables_by_provider() {
        let read = Overrides::read(GOOD).unwrap();
        let aws = &read.providers["aws"];
        let region = &aws.regions.as_ref().unwrap()["eu-west-1"];
        assert_eq!(region.base_groups, ["sg-1", "sg-2"]);
        assert_eq!(aws.instance_types["c5.4xlarge"], 10);
        assert_eq!(aws.worker_images["eu-west-1"][&MediaVersion::Lts], "ami-0");
        assert_eq!(read.regions("aws").unwrap().len(), 2);
        assert_eq!(read.regions("oci"), None, "those of the settings");

        let media = |region, level| read.media_version("aws", region, level);
        let latest = Some(Some("registry/media:9"));
        assert_eq!(media("eu-west-1", MediaVersion::Latest), latest);
        assert_eq!(
            media("eu-west-1", MediaVersion::Recommended),
            Some(None),
            "no other level"
        );
        assert_eq!(media("us-east-1", MediaVersion::Latest), None, "no table");

        let text = serde_json::to_string(&read).unwrap();
        assert_eq!(serde_json::from_str::<Overrides>(&text).unwrap(), read);
        assert_eq!(
            Overrides::read(&text).unwrap(),
            read,
            "what is kept reads as it was"
        );
    }

    // spec: OVR-01, OVR-03
    #[test]
    fn every_fault_is_told_with_line_column_and_key() {
        let text = r#"{
  "azure": {},
  "aws": {
    "regions": {"eu-west-1": {"subnet": [], "zones": ["a", 7, "a", ""]}},
    "instanceTypes": {"c5": "ten", "c6": -1},
    "workerImages": {"us-east-1": {"RECOMENDED": "ami-1"}},
    "pollMs": 5
  },
  "local": {"regions": {}, "mediaVersions": {"here": {"LTS": "m:1"}}}
}"#;
        let faults = Overrides::read(text).unwrap_err();
        let told: Vec<String> = faults.iter().map(ToString::to_string).collect();
        let expected = [
            "2:3: azure: unknown key, known are aws, oci, cloud-hypervisor, local",
            "4:31: aws.regions.eu-west-1.subnet: unknown key, known are subnets, baseGroups, zones",
            "4:60: aws.regions.eu-west-1.zones[1]: expected a text, found 7",
            "4:63: aws.regions.eu-west-1.zones[2]: \"a\" stands in this list twice",
            "4:68: aws.regions.eu-west-1.zones[3]: must be 1 to 512 bytes without spaces",
            "5:29: aws.instanceTypes.c5: expected a whole number of nodes, found text \"ten\"",
            "5:42: aws.instanceTypes.c6: expected a whole number of nodes, found -1",
            "6:22: aws.workerImages.us-east-1: it is not among the keys of aws.regions",
            "6:36: aws.workerImages.us-east-1.RECOMENDED: unknown key, known are RECOMMENDED, LATEST, PREVIOUS_RECOMMENDED, LTS",
            "7:5: aws.pollMs: unknown key, known are regions, instanceTypes, workerImages, workerVersions, mediaVersions",
            "9:13: local.regions: unknown key, known are mediaVersions",
            "9:46: local.mediaVersions.here: the provider local has one region, local",
        ];
        assert_eq!(told, expected);
        let told = Overrides::read("[]").unwrap_err();
        assert_eq!(told[0].to_string(), "1:1: expected an object, found a list");
    }

    // spec: OVR-02
    #[test]
    fn what_changed_is_told_by_key() {
        let before = Overrides::read(GOOD).unwrap();
        assert!(before.changes_from(&before).is_empty());
        let text = GOOD
            .replace("\"ami-1\"", "\"ami-2\"")
            .replace("\"us-east-1\": {}", "\"us-west-2\": {}")
            .replace("\"LTS\": \"ami-0\"", "\"LATEST\": \"ami-9\"");
        let after = Overrides::read(&text).unwrap();
        assert_eq!(
            after.changes_from(&before),
            [
                "aws.regions.us-east-1: removed",
                "aws.regions.us-west-2: added {}",
                "aws.workerImages.eu-west-1.LATEST: added \"ami-9\"",
                "aws.workerImages.eu-west-1.LTS: removed",
                "aws.workerImages.eu-west-1.RECOMMENDED: \"ami-1\" -> \"ami-2\"",
            ]
        );
    }
}

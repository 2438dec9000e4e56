//! Addresses, ranges of them, and URLs.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use http::Uri;

use super::Gives::{self, Bool, Int};
use super::{Call, Function, Outcome, Takes, failed};
use crate::cel::Value;
use crate::cel::value::Map;

type Implementation = for<'c, 'a> fn(Call<'c, 'a>) -> Outcome<'a>;

const TEXT: Takes = Takes::Text;
const IP: Takes = Takes::Opaque("net.IP");
const CIDR: Takes = Takes::Opaque("net.CIDR");
const URL: Takes = Takes::Opaque("kubernetes.URL");

/// An address and how many of its bits are those of the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cidr {
    address: IpAddr,
    bits: u8,
}

/// An absolute URL or path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Url {
    uri: Uri,
    /// A URL without a path has `/` in `uri`, and nothing upstream.
    has_path: bool,
}

const fn of(name: &'static str, method: bool, takes: &'static [Takes], gives: Gives, call: Implementation) -> Function {
    Function { name, method, takes, gives, call }
}

const fn part(name: &'static str, call: Implementation) -> Function {
    Function { name, method: true, takes: &[URL], gives: Gives::Text, call }
}

pub(super) const TABLE: &[Function] = &[
    of("ip", false, &[TEXT], Gives::Opaque("net.IP"), |call| {
        text(call, |text| parse_ip(text).map(Value::Ip).ok_or("is not an IP address"))
    }),
    of("isIP", false, &[TEXT], Bool, |call| text(call, |text| Ok(Value::Bool(parse_ip(text).is_some())))),
    of("ip.isCanonical", false, &[TEXT], Bool, |call| {
        text(call, |text| parse_ip(text).map(|ip| Value::Bool(ip.to_string() == text)).ok_or("is not an IP address"))
    }),
    of("family", true, &[IP], Int, |call| ip(call, |ip| Value::Int(if ip.is_ipv4() { 4 } else { 6 }))),
    of("isUnspecified", true, &[IP], Bool, |call| ip(call, |ip| Value::Bool(ip.is_unspecified()))),
    of("isLoopback", true, &[IP], Bool, |call| ip(call, |ip| Value::Bool(ip.is_loopback()))),
    of("isLinkLocalMulticast", true, &[IP], Bool, |call| ip(call, |ip| Value::Bool(is_local_multicast(ip)))),
    of("isLinkLocalUnicast", true, &[IP], Bool, |call| ip(call, |ip| Value::Bool(is_local(ip)))),
    of("isGlobalUnicast", true, &[IP], Bool, |call| ip(call, |ip| Value::Bool(is_global(ip)))),
    of("cidr", false, &[TEXT], Gives::Opaque("net.CIDR"), |call| {
        text(call, |text| parse_cidr(text).map(Value::Cidr).ok_or("is not a range of addresses in CIDR notation"))
    }),
    of("isCIDR", false, &[TEXT], Bool, |call| text(call, |text| Ok(Value::Bool(parse_cidr(text).is_some())))),
    of("containsIP", true, &[CIDR, IP], Bool, contains_ip),
    of("containsIP", true, &[CIDR, TEXT], Bool, contains_ip),
    of("containsCIDR", true, &[CIDR, CIDR], Bool, contains_cidr),
    of("containsCIDR", true, &[CIDR, TEXT], Bool, contains_cidr),
    of("ip", true, &[CIDR], Gives::Opaque("net.IP"), |call| cidr(call, |cidr| Value::Ip(cidr.address))),
    of("masked", true, &[CIDR], Gives::Opaque("net.CIDR"), |call| cidr(call, |cidr| Value::Cidr(cidr.masked()))),
    of("prefixLength", true, &[CIDR], Int, |call| cidr(call, |cidr| Value::Int(cidr.bits.into()))),
    of("url", false, &[TEXT], Gives::Opaque("kubernetes.URL"), |call| {
        text(call, |text| parse_url(text).map(|url| Value::Url(Arc::new(url))).ok_or("is not an absolute URL"))
    }),
    of("isURL", false, &[TEXT], Bool, |call| text(call, |text| Ok(Value::Bool(parse_url(text).is_some())))),
    part("getScheme", |call| url(call, |url| url.uri.scheme_str().unwrap_or_default().to_owned())),
    part("getHost", |call| {
        url(call, |url| {
            url.uri.authority().map_or("", |a| a.as_str().rsplit('@').next().unwrap_or_default()).to_owned()
        })
    }),
    part("getHostname", |call| url(call, |url| url.uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned())),
    part("getPort", |call| url(call, |url| url.uri.port().map(|port| port.as_str().to_owned()).unwrap_or_default())),
    part("getEscapedPath", |call| url(call, path)),
    of("getQuery", true, &[URL], Gives::Query, query),
];

fn text<'a>(call: Call<'_, 'a>, read: fn(&str) -> Result<Value<'a>, &'static str>) -> Outcome<'a> {
    let [Value::Text(text)] = call.values else { return Ok(None) };
    call.run.charge(text.len() / 10)?;
    read(text).map(Some).map_err(|why| failed(format!("{:?} {why}", &**text)))
}

fn ip<'a>(call: Call<'_, 'a>, read: fn(&IpAddr) -> Value<'a>) -> Outcome<'a> {
    let [Value::Ip(ip)] = call.values else { return Ok(None) };
    Ok(Some(read(ip)))
}

fn cidr<'a>(call: Call<'_, 'a>, read: fn(&Cidr) -> Value<'a>) -> Outcome<'a> {
    let [Value::Cidr(cidr)] = call.values else { return Ok(None) };
    Ok(Some(read(cidr)))
}

fn url<'a>(call: Call<'_, 'a>, read: fn(&Url) -> String) -> Outcome<'a> {
    let [Value::Url(url)] = call.values else { return Ok(None) };
    let part = read(url);
    call.run.charge(part.len() / 10)?;
    Ok(Some(Value::text(part)))
}

/// As upstream: no zone, and no address of version 4 in the form of version 6.
fn parse_ip(text: &str) -> Option<IpAddr> {
    text.parse().ok().filter(|ip| !matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some()))
}

fn parse_cidr(text: &str) -> Option<Cidr> {
    let (address, bits) = text.split_once('/')?;
    let address = parse_ip(address)?;
    if bits.len() > 1 && bits.starts_with('0') || bits.starts_with('+') {
        return None;
    }
    let bits = bits.parse().ok().filter(|bits| *bits <= if address.is_ipv4() { 32 } else { 128 })?;
    Some(Cidr { address, bits })
}

fn parse_url(text: &str) -> Option<Url> {
    let uri: Uri = text.parse().ok()?;
    let has_path =
        text.split_once("://").is_none_or(|(_, rest)| rest.split(['?', '#']).next().unwrap_or("").contains('/'));
    (uri.scheme().is_some() || text.starts_with('/')).then_some(Url { uri, has_path })
}

fn path(url: &Url) -> String {
    if url.has_path { url.uri.path().to_owned() } else { String::new() }
}

fn query<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let [Value::Url(url)] = call.values else { return Ok(None) };
    let mut found: BTreeMap<String, Vec<Value<'a>>> = BTreeMap::new();
    for pair in url.uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        call.run.charge(pair.len() / 10 + 1)?;
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        found.entry(unescaped(name)).or_default().push(Value::text(unescaped(value)));
    }
    let all = found.into_iter().map(|(name, values)| (Value::text(name), Value::list(values)));
    Ok(Some(Value::Map(Map::Made(all.collect()))))
}

fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code =
            after.get(..2).and_then(|hex| str::from_utf8(hex).ok()).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        rest = after;
        match (first, code) {
            (b'%', Some(code)) => {
                bytes.push(code);
                rest = &after[2..];
            }
            (b'+', _) => bytes.push(b' '),
            (other, _) => bytes.push(*other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn is_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

fn is_local_multicast(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
        IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
    }
}

fn is_global(ip: &IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !broadcast && !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast() && !is_local(ip)
}

fn contains_ip<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let (outer, address) = match call.values {
        [Value::Cidr(outer), Value::Ip(address)] => (outer, *address),
        [Value::Cidr(outer), Value::Text(text)] => {
            (outer, parse_ip(text).ok_or_else(|| failed(format!("{:?} is not an IP address", &**text)))?)
        }
        _ => return Ok(None),
    };
    let inner = Cidr { address, bits: if address.is_ipv4() { 32 } else { 128 } };
    Ok(Some(Value::Bool(outer.contains(&inner))))
}

fn contains_cidr<'a>(call: Call<'_, 'a>) -> Outcome<'a> {
    let (outer, inner) = match call.values {
        [Value::Cidr(outer), Value::Cidr(inner)] => (outer, *inner),
        [Value::Cidr(outer), Value::Text(text)] => {
            (outer, parse_cidr(text).ok_or_else(|| failed(format!("{:?} is not a range of addresses", &**text)))?)
        }
        _ => return Ok(None),
    };
    Ok(Some(Value::Bool(outer.contains(&inner))))
}

impl Cidr {
    /// The bits of an address, at the upper end.
    fn number(address: IpAddr) -> u128 {
        match address {
            IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
            IpAddr::V6(ip) => ip.to_bits(),
        }
    }

    fn mask(&self) -> u128 {
        u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0)
    }

    fn contains(&self, inner: &Self) -> bool {
        let same = self.address.is_ipv4() == inner.address.is_ipv4();
        same && self.bits <= inner.bits && (Self::number(self.address) ^ Self::number(inner.address)) & self.mask() == 0
    }

    fn masked(&self) -> Self {
        let number = Self::number(self.address) & self.mask();
        let address = match self.address {
            // The bits are at the upper end.
            IpAddr::V4(_) => IpAddr::V4(((number >> 96) as u32).into()),
            IpAddr::V6(_) => IpAddr::V6(number.into()),
        };
        Self { address, bits: self.bits }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

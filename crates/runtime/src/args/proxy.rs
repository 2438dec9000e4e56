//! Who asks for a proxy to the API server. None can be used here.

use std::net::IpAddr;

use kube::config::Kubeconfig;

/// Whether the cluster of the current context names a proxy.
pub(super) fn is_asked_for(kubeconfig: &Kubeconfig) -> bool {
    let current = kubeconfig.current_context.as_deref().unwrap_or_default();
    let context = kubeconfig.contexts.iter().find(|context| context.name == current);
    let cluster = context.and_then(|context| context.context.as_ref()).map(|context| &context.cluster);
    let found = kubeconfig.clusters.iter().find(|found| Some(&found.name) == cluster);
    let proxy = found.and_then(|found| found.cluster.as_ref()?.proxy_url.as_deref());
    proxy.is_some_and(|proxy| !proxy.is_empty())
}

/// Whether NO_PROXY, as Go reads it, covers the host: by name, by the domain it is in, by address or by network.
pub(super) fn is_exempt(host: &str, no_proxy: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase();
    let address = host.parse::<IpAddr>().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    no_proxy.split(',').map(|entry| entry.trim().to_ascii_lowercase()).any(|entry| match address {
        _ if entry == "*" => true,
        Some(address) => match entry.split_once('/') {
            Some((network, bits)) => is_within(address, network, bits),
            None => without_port(&entry).parse() == Ok(address),
        },
        None => {
            let domain = without_port(&entry).trim_start_matches('*').trim_start_matches('.');
            let ends = host.strip_suffix(domain).filter(|_| !domain.is_empty());
            // A domain with a dot before it does not cover its own name.
            ends.is_some_and(|rest| rest.ends_with('.') || rest.is_empty() && !entry.starts_with(['.', '*']))
        }
    })
}

fn without_port(entry: &str) -> &str {
    match entry.strip_prefix('[').and_then(|entry| entry.split_once(']')) {
        Some((address, _)) => address,
        None if entry.parse::<IpAddr>().is_ok() => entry,
        None => entry.split_once(':').map_or(entry, |(host, _)| host),
    }
}

fn is_within(address: IpAddr, network: &str, bits: &str) -> bool {
    let Ok(bits) = bits.parse::<u32>() else { return false };
    match (address, network.parse()) {
        (IpAddr::V4(address), Ok(IpAddr::V4(network))) if bits <= 32 => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or_default();
            address.to_bits() & mask == network.to_bits() & mask
        }
        (IpAddr::V6(address), Ok(IpAddr::V6(network))) if bits <= 128 => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or_default();
            address.to_bits() & mask == network.to_bits() & mask
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_proxy_covers_names_domains_addresses_and_networks() {
        for (host, no_proxy, exempt) in [
            ("api.example.com", "", false),
            ("api.example.com", "*", true),
            ("api.example.com", "api.example.com", true),
            ("API.example.com.", " other.org , Example.com:6443", true),
            ("api.example.com", ".example.com", true),
            ("example.com", ".example.com", false),
            ("example.com", "*.example.com", false),
            ("badexample.com", "example.com", false),
            ("10.96.0.1", "10.96.0.0/12", true),
            ("10.96.0.1", "10.0.0.0/16,192.168.0.0/16", false),
            ("10.96.0.1", "10.96.0.1:443", true),
            ("10.96.0.1", "0.0.0.0/0", true),
            ("10.96.0.1", "10.96.0.0/99", false),
            ("[fd00::1]", "fd00::/8", true),
            ("[fd00::1]", "[fd00::1]:443", true),
            ("[fd00::1]", "10.0.0.0/8", false),
            ("localhost", "", true),
            ("127.0.0.1", "", true),
        ] {
            assert_eq!(is_exempt(host, no_proxy), exempt, "{host} in {no_proxy:?}");
        }
    }

    #[test]
    fn only_the_cluster_of_the_current_context_asks_for_a_proxy() {
        let kubeconfig = |current: &str| {
            let text = format!(
                "{{apiVersion: v1, kind: Config, current-context: {current}, contexts: [{{name: a, context: {{cluster: a}}}}, \
                 {{name: b, context: {{cluster: b}}}}], clusters: [{{name: a, cluster: {{server: 'http://a', proxy-url: \
                 'http://proxy'}}}}, {{name: b, cluster: {{server: 'http://b'}}}}]}}"
            );
            Kubeconfig::from_yaml(&text).unwrap()
        };
        assert!(is_asked_for(&kubeconfig("a")));
        assert!(!is_asked_for(&kubeconfig("b")));
        assert!(!is_asked_for(&kubeconfig("c")));
    }
}

use serde_json::{Value as Json, json};

use super::{Error, Program, Run, Type, Value};

fn schema() -> Json {
    let text = || json!({"type": "string"});
    json!({"type": "object", "properties": {
        "name": text(), "namespace": text(), "a-b": text(), "empty": text(), "absent": text(),
        "size": {"type": "integer"}, "ratio": {"type": "number"}, "on": {"type": "boolean"},
        "nothing": {"type": "string", "nullable": true},
        "port": {"x-kubernetes-int-or-string": true},
        "at": {"type": "string", "format": "date-time"}, "every": {"type": "string", "format": "duration"},
        "data": {"type": "string", "format": "byte"},
        "list": {"type": "array", "items": {"type": "integer"}},
        "words": {"type": "array", "items": text()},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": text()},
        "other": {"type": "array", "x-kubernetes-list-type": "set", "items": text()},
        "labels": {"type": "object", "additionalProperties": text()},
        "free": {"x-kubernetes-preserve-unknown-fields": true},
        "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "properties": {"name": text(), "port": {"type": "integer"}}}},
    }})
}

fn object() -> Json {
    json!({
        "name": "näme", "namespace": "ns", "a-b": "dash", "empty": "", "size": 3, "ratio": 2, "on": true,
        "nothing": null, "port": "80%", "at": "2024-02-29T12:30:45Z", "every": "1h30m", "data": "aGk=",
        "list": [3, 1, 2], "words": ["a", "b"], "set": ["x", "y"], "other": ["y", "x"],
        "labels": {"app": "db", "tier": "back"}, "free": {"any": 1},
        "ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}],
        "metadata": {"name": "o", "labels": {}},
    })
}

fn evaluate(text: &str) -> Result<String, String> {
    let own = Type::of(&schema(), true).unwrap();
    let program = Program::compile(text, &own, &own)?;
    let tree = object();
    let own_value = Value::of(&tree, &own);
    let mut run = Run::new(1_000_000);
    let value = program.evaluate(&own_value, Some(&own_value), &mut run).map_err(|error| error.to_string())?;
    let mut shown = String::new();
    value.write(&mut shown, &mut run).map_err(|error| error.to_string())?;
    Ok(shown)
}

#[track_caller]
fn all_hold(expressions: &[&str]) {
    for text in expressions {
        assert_eq!(evaluate(text).as_deref(), Ok("true"), "{text}");
    }
}

#[test]
fn literals_and_operators_are_those_of_the_language() {
    all_hold(&[
        "1 + 2 * 3 == 7 && (1 + 2) * 3 == 9",
        "7 / 2 == 3 && -7 / 2 == -3 && 7 % 4 == 3",
        "0x1F == 31 && 1u + 2u == 3u && 1.5e1 == 15.0 && .5 == 0.5",
        "-9223372036854775808 < 0",
        "1 == 1.0 && 1u == 1 && 2 > 1.5 && dyn([1]) == [1.0]",
        "'a' + \"b\" == 'ab' && r'\\d' == '\\\\d' && '''a'b''' == 'a\\'b'",
        "'\\u00e4\\x41\\101\\n'.size() == 4",
        "b'abc' == bytes('abc') && b'\\xff'.size() == 1",
        "'a' < 'b' && false < true && !(1 > 2) && !false",
        "true ? 1 == 1 : false",
        "1 in [1, 2] && !(3 in [1, 2]) && 'a' in {'a': 1}",
        "[1, 2] + [3] == [1, 2, 3] && [1, 2][1] == 2 && {'k': 'v'}['k'] == 'v' && {'k': 'v'}.k == 'v'",
        "{1: 'a', 2: 'b'}[2] == 'b' && dyn({'a': 1}) == {'a': 1.0} && {'a': 1} != {'a': 2}",
        "null == null && self.nothing == null",
        "// a comment\n true",
        "[1, 2,].size() == 2",
    ]);
}

#[test]
fn the_fields_of_an_object_are_read_by_their_schema() {
    all_hold(&[
        "self.name == 'näme' && self.__namespace__ == 'ns' && self.a__dash__b == 'dash'",
        "self.size == 3 && self.ratio == 2.0 && type(self.ratio) == double && self.on",
        "type(self.port) == string && self.port.endsWith('%')",
        "self.at.getFullYear() == 2024 && self.every == duration('90m') && self.data == b'hi'",
        "has(self.name) && !has(self.absent) && has(self.empty) && has(self.nothing)",
        "has(self.labels.app) && !has(self.labels.none) && self.labels['app'] == 'db' && 'tier' in self.labels",
        "self.metadata.name == 'o' && !has(self.kind)",
        "self.set == self.other && self.set + ['z'] == ['x', 'y', 'z'] && self.set + self.other == ['x', 'y']",
        "self.ports[1].port == 443 && size(self.ports + self.ports) == 2",
        "self == oldSelf && self.labels == oldSelf.labels",
        "self.?absent.orValue('d') == 'd' && self.?name.hasValue() && !self.?absent.hasValue()",
        "self.labels[?'none'].orValue('x') == 'x' && self.list[?9] == optional.none()",
        "self.?name.optMap(n, n + '!').value() == 'näme!' && self.?absent.or(self.?name).value() == 'näme'",
        "[?self.?absent, 'a'] == ['a'] && {?'k': self.?absent} == {}",
    ]);
}

#[test]
fn macros_go_through_lists_and_keys_of_maps() {
    all_hold(&[
        "self.list.all(x, x > 0) && !self.list.all(x, x > 1) && self.list.exists(x, x == 2)",
        "self.list.exists_one(x, x > 2) && !self.list.exists_one(x, x > 1)",
        "self.list.map(x, x * 2) == [6, 2, 4] && self.list.map(x, x > 1, x * 2) == [6, 4]",
        "self.list.filter(x, x != 1) == [3, 2] && [].all(x, false) && ![].exists(x, true)",
        "self.labels.all(k, self.labels[k].size() > 1) && self.labels.exists(k, k == 'app')",
        "self.labels.map(k, k) == ['app', 'tier']",
        "self.list.all(i, x, i >= 0 && x > 0) && self.labels.exists(k, v, k == 'app' && v == 'db')",
        "self.list.transformList(i, x, x + i) == [3, 2, 4] && {'a': 1}.transformMap(k, v, v + 1) == {'a': 2}",
        "self.ports.all(p, self.ports.exists_one(q, q.name == p.name))",
        // What fails is no matter where another element decides.
        "[0, 1].exists(x, 1 / x == 1) && ![0, 2].all(x, 1 / x == 1)",
        "[1, 2].all(self, self > 0)",
    ]);
    assert_eq!(evaluate("[0, 2].exists(x, 1 / x == 1)").unwrap_err(), "division by zero");
}

#[test]
fn functions_of_texts_count_characters() {
    all_hold(&[
        "self.name.size() == 4 && size(self.name) == 4 && self.name.contains('ä') && self.name.startsWith('n')",
        "self.name.matches('^n.me$') && matches(self.name, '^n') && !self.name.matches('^x')",
        "self.name.charAt(1) == 'ä' && self.name.charAt(4) == '' && self.name.indexOf('m') == 2",
        "'hello'.lastIndexOf('l') == 3 && 'hello'.lastIndexOf('l', 2) == 2 && 'hello'.indexOf('l', 3) == 3",
        "'hello'.indexOf('x') == -1 && ''.indexOf('') == 0",
        "'AbC'.lowerAscii() == 'abc' && 'AbC'.upperAscii() == 'ABC' && '  a '.trim() == 'a'",
        "'a-b-c'.replace('-', '_') == 'a_b_c' && 'a-b-c'.replace('-', '_', 1) == 'a_b-c'",
        "'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c'] && 'ab'.split('') == ['a', 'b']",
        "'hello'.substring(1) == 'ello' && 'hello'.substring(1, 3) == 'el'",
        "['a', 'b'].join() == 'ab' && self.words.join('-') == 'a-b' && 'ab'.reverse() == 'ba'",
        "'abc 123'.find('[0-9]+') == '123' && '1 2 3'.findAll('[0-9]') == ['1', '2', '3']",
        "'1 2 3'.findAll('[0-9]', 2) == ['1', '2'] && 'x'.find('[0-9]') == ''",
        "'%s has %d of %.1f%%'.format(['a', 2, 1.25]) == 'a has 2 of 1.2%' && '%x'.format([255]) == 'ff'",
        "'%s'.format([['a', 1]]) == '[a, 1]'",
        "strings.quote('a\"b') == '\"a\\\\\"b\"'",
    ]);
}

#[test]
fn conversions_and_times_are_as_upstream() {
    all_hold(&[
        "int('42') == 42 && int(3.9) == 3 && int(3u) == 3 && uint(3) == 3u && double('1.5') == 1.5",
        "string(42) == '42' && string(true) == 'true' && string(1.5) == '1.5' && string(b'hi') == 'hi' && bool('true')",
        "timestamp('2024-01-01T00:00:00Z') < self.at && self.at - duration('1h') < self.at",
        "self.at - timestamp('2024-02-29T12:30:00Z') == duration('45s')",
        "self.at.getMonth() == 1 && self.at.getDate() == 29 && self.at.getDayOfMonth() == 28 && self.at.getDayOfWeek() == 4",
        "self.at.getHours() == 12 && self.at.getHours('+02:00') == 14 && self.at.getHours('-08:00') == 4",
        "self.every.getMinutes() == 90 && duration('1.5s').getMilliseconds() == 1500 && duration('-1h') < duration('0s')",
        "string(duration('90m')) == '5400s' && string(self.at) == '2024-02-29T12:30:45Z'",
        "type(1) == int && type('a') == string && type([]) == list && type({}) == map && type(null) == null_type",
        "dyn(self.size) == 3",
    ]);
}

#[test]
fn lists_sets_and_numbers_have_the_functions_of_kubernetes() {
    all_hold(&[
        "!self.list.isSorted() && [1, 2, 2].isSorted() && ['a', 'b'].isSorted()",
        "self.list.sum() == 6 && [].sum() == 0 && [1.5, 2.5].sum() == 4.0 && self.list.min() == 1 && self.list.max() == 3",
        "self.list.indexOf(2) == 2 && [1, 2, 1].lastIndexOf(1) == 2 && self.list.indexOf(9) == -1",
        "self.list.slice(0, 2) == [3, 1] && self.list.reverse() == [2, 1, 3] && self.list.sort() == [1, 2, 3]",
        "[1, 1, 2].distinct() == [1, 2]",
        "sets.contains(self.list, [1, 2]) && sets.equivalent(self.list, [1, 2, 3]) && sets.intersects(self.list, [9, 1])",
        "!sets.contains([1], [2]) && !sets.intersects([1], [2])",
        "math.greatest(1, 2, 3) == 3 && math.least([4, 2]) == 2 && math.abs(-1) == 1 && math.ceil(1.2) == 2.0",
        "base64.encode(b'hi') == 'aGk=' && base64.decode('aGk') == b'hi'",
    ]);
}

#[test]
fn the_types_that_kubernetes_adds_are_there() {
    all_hold(&[
        "quantity('1Gi').isGreaterThan(quantity('500Mi')) && quantity('1k') == quantity('1000') && isQuantity('20Mi')",
        "!isQuantity('20MiB') && quantity('1k').asInteger() == 1000 && quantity('500m').asApproximateFloat() == 0.5",
        "quantity('1Gi').add(quantity('1Gi')).compareTo(quantity('2Gi')) == 0 && quantity('5').sub(2).asInteger() == 3",
        "!quantity('500m').isInteger() && quantity('-1').sign() == -1",
        "isIP('10.0.0.1') && !isIP('10.0.0.256') && ip('::1').family() == 6 && ip('127.0.0.1').isLoopback()",
        "ip.isCanonical('::1') && !ip.isCanonical('0:0:0:0:0:0:0:1') && ip('8.8.8.8').isGlobalUnicast()",
        "cidr('10.0.0.0/8').containsIP('10.1.2.3') && !cidr('10.0.0.0/8').containsIP(ip('11.0.0.1'))",
        "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8')",
        "isCIDR('::/0') && cidr('::/0').containsIP('::1') && cidr('10.0.0.0/8').prefixLength() == 8",
        "url('https://u@example.com:80/p/a?x=1&x=2').getHost() == 'example.com:80' && isURL('/path') && !isURL('nope')",
        "url('https://[::1]:80/').getHostname() == '::1' && url('https://a.b').getEscapedPath() == ''",
        "url('https://a:81/p?x=1&y=%20').getPort() == '81' && url('/p?x=1&x=2').getQuery() == {'x': ['1', '2']}",
        "semver('1.2.3').isLessThan(semver('1.10.0')) && semver('1.0.0-rc.1').isLessThan(semver('1.0.0'))",
        "isSemver('1.2.3') && !isSemver('v1.2') && isSemver('v1.2', true) && semver('1.2.3').minor() == 2",
        "!format.dns1123Label().validate('a-b').hasValue() && format.dns1123Label().validate('A').hasValue()",
        "format.named('uuid').value().validate('x').hasValue() && !format.named('none').hasValue()",
        "!format.qualifiedName().validate('example.com/a_b').hasValue() && format.labelValue().validate('-').hasValue()",
    ]);
}

#[test]
fn an_expression_whose_types_cannot_fit_is_refused_with_its_place() {
    for (text, why) in [
        ("self.none", "1:5: undefined field 'none'"),
        ("self.free.any == 1", "1:5: undefined field 'free'"),
        ("self.metadata.labels.size() == 0", "1:14: undefined field 'labels'"),
        ("has(self.none)", "undefined field 'none'"),
        ("none == 1", "1:1: undeclared reference to 'none'"),
        ("self.size.none()", "undeclared reference to 'none'"),
        ("self.size == 'a'", "1:11: found no matching overload for '_==_' applied to '(int, string)'"),
        ("self.size + self.name == 1", "'_+_' applied to '(int, string)'"),
        ("self.name.startsWith(1)", "'startsWith' applied to '(string, int)'"),
        ("self.name.all(c, true)", "cannot be range of a comprehension"),
        ("self.all(c, true)", "cannot be range of a comprehension"),
        ("self.list.all(x, x)", "expected type 'bool' but found 'int'"),
        ("self.list.all(1, true)", "argument must be a simple name"),
        ("self.name && true", "expected type 'bool' but found 'string'"),
        ("self.name.matches('(')", "invalid matches argument"),
        ("namespace == 'a'", "reserved identifier: namespace"),
        ("self.namespace == 'a'", "undefined field 'namespace'"),
        ("self.list[self.name] == 1", "'_[_]' applied to"),
        ("has(self)", "invalid argument to has() macro"),
        ("1 +", "1:4: Syntax error: <EOF> is not expected here"),
        ("(1", "Syntax error"),
        ("1 1", "Syntax error: a number is not expected here"),
        ("'a", "no closing quote"),
        ("'\\q'", "invalid escape"),
        ("1 # 2", "token recognition error at: '#'"),
        ("9223372036854775808 > 0", "invalid int literal"),
        ("size()", "found no matching overload for 'size'"),
        ("true &&\n  self.none", "2:7: undefined field 'none'"),
        ("", "Syntax error"),
    ] {
        let told = evaluate(text).unwrap_err();
        assert!(told.starts_with("ERROR: <input>:") && told.contains(why), "{text}: {told}");
    }
}

#[test]
fn what_fails_with_the_values_says_why() {
    for (text, why) in [
        ("self.absent == 'a'", "no such key: absent"),
        ("self.labels['none'] == 'a'", "no such key: none"),
        ("self.list[9] == 1", "index out of bounds: 9"),
        ("1 / (self.size - 3) == 1", "division by zero"),
        ("9223372036854775807 + self.size > 0", "integer overflow"),
        ("self.port < 5", "no such overload: _<_(string, int)"),
        ("quantity(self.name).sign() == 1", "\"näme\" is not a quantity"),
        ("self.name.substring(9) == ''", "index out of range: 9"),
        ("self.at.getHours('Mars/Base') == 1", "unknown time zone \"Mars/Base\""),
        ("self.?absent.value() == ''", "optional.none() dereference"),
    ] {
        let told = evaluate(text).unwrap_err();
        assert!(told.contains(why), "{text}: {told}");
    }
    // One side is enough.
    all_hold(&["self.absent == 'a' || true", "true || self.absent == 'a'", "!(self.absent == 'a' && false)"]);
}

#[test]
fn an_expression_that_is_too_long_or_too_deep_is_refused() {
    let too_deep = "levels of parts inside each other";
    let wrapped =
        |open: &str, close: &str, count: usize| format!("{}1 == 1{}", open.repeat(count), close.repeat(count));
    for text in [
        wrapped("(", ")", 10_000),
        wrapped("!(", ")", 10_000),
        format!("{}true", "!".repeat(50_000)),
        format!("{}1 == 1", "-".repeat(50_000)),
        wrapped("[", "]", 10_000),
        wrapped("true ? true : (", ")", 5000),
        format!("{}true", "true ? true : ".repeat(5000)),
        format!("self{}", ".a".repeat(20_000)),
        format!("1{} == 1", " + 1".repeat(10_000)),
        format!("self.list{}", "[0]".repeat(10_000)),
        format!("self.name{}", ".trim()".repeat(10_000)),
        format!("{}true{}", "[1].all(x, ".repeat(5000), ")".repeat(5000)),
    ] {
        let told = evaluate(&text).unwrap_err();
        assert!(told.contains(too_deep), "{}: {}", &text[..20], &told[..told.len().min(200)]);
    }
    assert!(evaluate(&"x".repeat(100_001)).unwrap_err().contains("an expression may have"));
    // Long chains are wide, not deep; and what is as deep as may be is evaluated.
    all_hold(&[
        &format!("true{}", " && true".repeat(5000)),
        &wrapped("(", ")", 99),
        &format!("1{} == 99", " + 1".repeat(98)),
    ]);
    all_hold(&[&format!("{}true{}", "[1].all(x, ".repeat(98), ")".repeat(98))]);
}

#[test]
fn an_evaluation_that_costs_too_much_ends() {
    let many = format!("[{}]", vec!["1"; 300].join(","));
    for text in [
        format!("{many}.all(a, {many}.all(b, {many}.all(c, a + b + c > 0)))"),
        format!("{many}.map(a, {many}.map(b, {many})).size() > 0"),
        // A text that doubles thirty times.
        format!("{}z != ''{}", "['z'].all(z, ".to_owned() + &"[z + z].all(z, ".repeat(30), ")".repeat(31)),
        format!("{}z.size() > 0{}", "[[1]].all(z, ".to_owned() + &"[z + z].all(z, ".repeat(30), ")".repeat(31)),
        // A tree that shares its parts, looked at as a whole.
        format!("{}z == z{}", "[[1]].all(z, ".to_owned() + &"[[z, z]].all(z, ".repeat(30), ")".repeat(31)),
        format!(
            "{}'%s'.format([z]) == ''{}",
            "[[1]].all(z, ".to_owned() + &"[[z, z]].all(z, ".repeat(30),
            ")".repeat(31)
        ),
        format!("{}z != ''{}", "['z'].all(z, ".to_owned() + &"[z.replace('', z)].all(z, ".repeat(10), ")".repeat(11)),
        // Errors of what costs too much are not swallowed.
        format!("true || {many}.all(a, {many}.all(b, {many}.all(c, true))) || true").replacen("true ||", "false ||", 1),
        format!("{many}.exists(a, {many}.exists(b, {many}.exists(c, false)))"),
        format!("{many}.all(a, 'aaaaaaaaaaaaaaaaaaaa'.matches('(a|aa)+' + string(a)) || true)"),
    ] {
        let own = Type::of(&schema(), true).unwrap();
        let program = Program::compile(&text, &own, &own).unwrap();
        let tree = object();
        let own_value = Value::of(&tree, &own);
        let mut run = Run::new(1_000_000);
        let error = program.evaluate(&own_value, None, &mut run).map(|_| ()).unwrap_err();
        assert_eq!(error, Error::Cost, "{}", &text[text.len() - 60..]);
        assert_eq!(run.left(), 0);
    }
}

#[test]
fn an_object_with_many_heavy_patterns_is_refused_by_cost() {
    let own = Type::list(Type::Text);
    let patterns = serde_json::json!(vec!["([a-z]?){3000}[a-z]{3000}"; 400]);
    for text in ["self.all(p, 'a'.matches(p))", "self.exists(p, 'a'.matches(p))", "self.all(p, 'a'.matches(p) || true)"]
    {
        let program = Program::compile(text, &own, &own).unwrap();
        let mut run = Run::new(1_000_000);
        let error = program.evaluate(&Value::of(&patterns, &own), None, &mut run).map(|_| ()).unwrap_err();
        assert_eq!(error, Error::Cost, "{text}");
    }
}

#[test]
fn an_expression_knows_whether_it_asks_for_the_old_value() {
    let uses = |text: &str| Program::compile(text, &Type::Int, &Type::Int).unwrap().uses_old_self();
    assert!(uses("self == oldSelf") && uses("[1].all(x, x < oldSelf)"));
    assert!(!uses("self == 1") && !uses("[1].all(oldSelf, oldSelf > 0)"));
}

proptest::proptest! {
    #[test]
    fn no_text_stops_the_server(text in "[ -~]{0,80}") {
        let _outcome = evaluate(&text);
    }

    #[test]
    fn no_words_in_any_order_stop_the_server(words in proptest::collection::vec(
        proptest::sample::select(vec!["self", ".", "name", "list", "(", ")", "[", "]", "all", "x", ",", "==", "&&", "!", "-",
            "1", "'a'", "?", ":", "has", "map", "+", "size", "{", "}", "in", "oldSelf", "optional.none()", "b'\\xff'"]), 0..25)) {
        let _outcome = evaluate(&words.join(" "));
        let _outcome = evaluate(&words.concat());
    }
}

//! Finds what a file imports.

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Attribute, File, ImplItem, Item, ItemMod, ItemUse, Macro, Meta, UseTree, VisRestricted};

/// One path that leads to another module.
#[derive(Debug)]
pub(super) struct Import {
    /// The module that it stands in.
    pub(super) module: Vec<String>,
    /// From the crate's root.
    pub(super) target: Vec<String>,
    /// As it is written.
    pub(super) shown: String,
    /// Counted from 1.
    pub(super) line: usize,
}

/// The imports of a file that holds `module`, without those of its tests.
pub(super) fn imports(module: &[String], file: &File) -> Vec<Import> {
    let mut finder = Finder {
        module: module.to_vec(),
        found: Vec::new(),
    };
    finder.visit_file(file);
    finder.found
}

/// The modules that the file declares for tests alone.
pub(super) fn test_modules(module: &[String], file: &File) -> Vec<Vec<String>> {
    let modules = file.items.iter().filter_map(|item| match item {
        Item::Mod(inner) if for_tests(&inner.attrs) => Some(inner.ident.to_string()),
        _ => None,
    });
    modules.map(|name| [module, &[name]].concat()).collect()
}

struct Finder {
    /// The module at the current place.
    module: Vec<String>,
    found: Vec<Import>,
}

impl Finder {
    /// Keeps the path if it begins at the crate's root or at a module relative to this one.
    fn path(&mut self, written: &[String], span: Span) {
        let target = match written.first().map(String::as_str) {
            Some("crate") => written[1..].to_vec(),
            Some("self") if written.len() > 1 => [&self.module, &written[1..]].concat(),
            Some("super") => {
                let up = written.iter().take_while(|name| *name == "super").count();
                let around = self.module.len().saturating_sub(up);
                [&self.module[..around], &written[up..]].concat()
            }
            _ => return,
        };
        self.found.push(Import {
            module: self.module.clone(),
            target,
            shown: written.join("::"),
            line: span.start().line,
        });
    }

    fn tree(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.tree(&path.tree, &with(&path.ident)),
            UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(item, before)),
            UseTree::Name(name) if name.ident == "self" => self.path(before, name.span()),
            UseTree::Name(name) => self.path(&with(&name.ident), name.span()),
            UseTree::Rename(rename) if rename.ident == "self" => self.path(before, rename.span()),
            UseTree::Rename(rename) => self.path(&with(&rename.ident), rename.span()),
            UseTree::Glob(glob) => self.path(before, glob.span()),
        }
    }

    /// What syn leaves as tokens: a macro's input and an attribute's arguments.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        let mut begin = Span::call_site();
        for token in tokens {
            match &token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Ident(name) if colons == 2 && !path.is_empty() => {
                    path.push(name.to_string());
                }
                TokenTree::Ident(name) => {
                    self.path(&path, begin);
                    begin = name.span();
                    path = match colons {
                        2 => Vec::new(),
                        _ => vec![name.to_string()],
                    };
                }
                _ => {
                    self.path(&path, begin);
                    path.clear();
                }
            }
            colons = 0;
            match token {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Literal(literal) => self.quoted(&literal.to_string(), literal.span()),
                _ => {}
            }
        }
        self.path(&path, begin);
    }

    /// A path in quotes, as serde takes the names of functions.
    fn quoted(&mut self, literal: &str, span: Span) {
        let path = literal.trim_matches('"');
        let is_path = path
            .chars()
            .all(|c| c.is_alphanumeric() || "_:".contains(c));
        if is_path && path.contains("::") {
            let names: Vec<String> = path.split("::").map(str::to_owned).collect();
            self.path(&names, span);
        }
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item(&mut self, item: &'ast Item) {
        if !for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let in_tests = match item {
            ImplItem::Fn(function) => for_tests(&function.attrs),
            ImplItem::Const(constant) => for_tests(&constant.attrs),
            _ => false,
        };
        if !in_tests {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, inner: &'ast ItemMod) {
        self.module.push(inner.ident.to_string());
        visit::visit_item_mod(self, inner);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.tree(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.path(&names, path.span());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
        }
    }

    /// `pub(in crate::module)` imports nothing.
    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}
}

/// Whether it is compiled for tests alone.
fn for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            let words = list.tokens.to_string();
            let mut words = words.split(|c: char| !c.is_alphanumeric());
            words.clone().any(|word| word == "test") && !words.any(|word| word == "not")
        }
        _ => false,
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

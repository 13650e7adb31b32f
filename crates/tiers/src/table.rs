//! All images of both tiers, in a table that never grows.

use crate::error::TierError;
use crate::image::{ImageHead, ImageId, Tier};

/// What a store knows of an image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Image {
    pub(crate) head: ImageHead,
    pub(crate) tier: Tier,
    /// Number that its frames bear.
    pub(crate) nonce: u64,
    /// Its first window.
    pub(crate) first: u32,
    /// True once it can be restored.
    pub(crate) landed: bool,
    /// Moves that read it.
    pub(crate) readers: u8,
    /// True once damage was found: it is restored no more, and forgotten when nobody reads it.
    pub(crate) damaged: bool,
}

#[derive(Debug)]
struct Place {
    generation: u32,
    image: Option<Image>,
}

/// Images by id. An image has a window, so one place for each window is enough for all.
#[derive(Debug)]
pub(crate) struct ImageTable {
    places: Vec<Place>,
    /// Places without an image; has room for all of them.
    free: Vec<u32>,
}

impl ImageTable {
    pub(crate) fn new(places: u32) -> ImageTable {
        let free = (0..places).rev().collect();
        let places = (0..places).map(|_| Place { generation: 0, image: None }).collect();
        ImageTable { places, free }
    }

    pub(crate) fn insert(&mut self, image: Image) -> ImageId {
        let index = self.free.pop().expect("each image holds a window, and there is a place each");
        let place = &mut self.places[index as usize];
        place.generation = place.generation.wrapping_add(1);
        place.image = Some(image);
        ImageId::new(index, place.generation)
    }

    /// The image, landed or not.
    pub(crate) fn get(&self, id: ImageId) -> Result<&Image, TierError> {
        let place = self.places.get(id.index()).filter(|place| place.generation == id.generation());
        place.and_then(|place| place.image.as_ref()).ok_or(TierError::UnknownImage { image: id })
    }

    /// The image, if it has landed.
    pub(crate) fn landed(&self, id: ImageId) -> Result<&Image, TierError> {
        self.get(id).and_then(|image| {
            let whole = image.landed && !image.damaged;
            if whole { Ok(image) } else { Err(TierError::UnknownImage { image: id }) }
        })
    }

    /// The image, to change it; it must exist.
    pub(crate) fn known(&mut self, id: ImageId) -> &mut Image {
        let place = &mut self.places[id.index()];
        assert_eq!(place.generation, id.generation(), "a move holds an image that exists");
        place.image.as_mut().expect("a move holds an image that exists")
    }

    /// Forgets an image that exists.
    pub(crate) fn remove(&mut self, id: ImageId) -> Image {
        let image = *self.known(id);
        self.places[id.index()].image = None;
        self.free.push(id.index() as u32);
        image
    }
}
